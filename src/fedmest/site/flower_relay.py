"""The relay at a site: a Flower app that passes requests to the vault's socket and its answers back.

It holds no rows, no noise and no budget: any other app that reaches a SuperNode meets the same vault. Flower starts a
process for every message, so this imports little.
"""

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedmest.runs.messages import Malformed, Refusal, encode
from fedmest.site.connection import call

REPLY_TIMEOUT_S = 600.0  # for one answer; the server gives up earlier

client_app = ClientApp()


@client_app.train()
def relay(message: Message, context: Context) -> Message:
    """Pass a request to the vault behind the socket that the site's own node configuration names."""
    try:
        body = message.content["fedmest"]["body"]
        reply = call(str(context.node_config["socket"]), body, REPLY_TIMEOUT_S)
    except (OSError, KeyError, TypeError, Malformed) as error:
        reply = encode(Refusal("", f"the site's vault cannot be reached ({type(error).__name__})"))
    return Message(content=RecordDict({"fedmest": ConfigRecord({"body": reply})}), reply_to=message)
