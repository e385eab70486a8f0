"""What a tool knows of its turn: your own objects, ids, a key for each call, and how to say how far it is."""

from dataclasses import dataclass, field

from fsm_agent import Agent, RunContext, tool


@dataclass
class Shop:
    stock: dict[str, int]
    sold: dict[str, str] = field(default_factory=dict)


@tool(effect="idempotent")
def sell(context: RunContext[Shop], item: str) -> str:
    """Sell an item."""
    context.progress(f"looking for a {item}")
    if context.idempotency_key not in context.deps.sold:  # the same when a crash repeats this very call
        context.deps.stock[item] -= 1
        context.deps.sold[context.idempotency_key] = item
    context.log.info("sold in attempt %d, %s iterations left", context.attempt, context.iterations_left)
    return f"sold; {context.deps.stock[item]} left"


shop = Shop({"lamp": 3})
agent = Agent("offline:demo", tools=[sell], toolsets=[])
print(agent.chat('Please call sell("lamp")', deps=shop))
print(shop.stock)
