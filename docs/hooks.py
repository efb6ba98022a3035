"""What mkdocs has to be told of this folder: one page lies outside of it, and some results are called index.html."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

BENCHMARKS = "../benchmarks/README.md"  # as links in the repository name it


def on_files(files: Files, config: MkDocsConfig) -> Files:
    folder = Path(config.docs_dir)
    found = [path.relative_to(folder).as_posix() for path in folder.rglob("index.html")]
    for source in [file for file in files if file.src_uri in found]:
        files.remove(source)
    places = {path: path.removesuffix("index.html") + "results.html" for path in found}  # index.html is the README's
    for path, place in {**places, BENCHMARKS: "benchmarks/index.html"}.items():
        files.append(File(path, config.docs_dir, config.site_dir, config.use_directory_urls, dest_uri=place,
                          inclusion=InclusionLevel.INCLUDED))  # fmt: skip
    return files
