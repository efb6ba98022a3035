"""The relay at a site: a Flower app that passes requests to the vault's socket and its answers back.

It holds no rows, no noise and no budget: whatever else an app brings to a SuperNode, it meets the same vault. Flower
starts a process for every message, so this imports little.
"""

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedmest.site import wire

PATIENCE = 600.0  # seconds for one answer; the server gives up earlier

client_app = ClientApp()


@client_app.train()
def relay(message: Message, context: Context) -> Message:
    """Pass a request to the vault behind the socket that the site's own settings name."""
    try:
        body = message.content["fedmest"]["body"]
        reply = wire.call(str(context.node_config["socket"]), body, PATIENCE)
    except (OSError, KeyError, TypeError, wire.Malformed) as fault:
        reply = wire.pack({"refused": f"the site's vault cannot be reached ({type(fault).__name__})"})
    return Message(content=RecordDict({"fedmest": ConfigRecord({"body": reply})}), reply_to=message)
