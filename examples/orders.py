"""Join orders with the customers who made them, and add up what each country spent.

The sums are printed, and written to out/orders as CSV.
"""

import argparse
from decimal import Decimal
from pathlib import Path

from jetlet import Pipeline, agg, sinks, sources

DATA = Path(__file__).parent / "data"


def with_country(order, customer):
    """An order of a customer whom nobody knows is joined with None."""
    return {**order, "country": customer["country"] if customer else "unknown"}


def row(entry):
    country, (orders, amount, biggest) = entry
    return {"country": country, "orders": orders, "amount": amount, "biggest": biggest["amount"]}


p = Pipeline("orders")
customers = p.read_from(sources.csv(DATA / "customers.csv", types={"id": int}))
orders = p.read_from(
    sources.csv(
        DATA / "orders.csv",
        types={"id": int, "customer_id": int, "quantity": int, "amount": Decimal},
    )
)
spent = (
    orders.hash_join(
        customers,
        lambda order: order["customer_id"],
        lambda customer: customer["id"],
        to_output=with_country,
    )
    .grouping_key(lambda order: order["country"])
    .aggregate(
        agg.all_of(
            agg.counting(),
            agg.summing(lambda order: order["amount"]),
            agg.max_by(lambda order: order["amount"]),
        )
    )
    .map(row)
    .sort(lambda row: row["amount"], reverse=True)
)
spent.write_to(sinks.csv("out/orders"))
spent.write_to(
    sinks.logger(formatter=lambda row: "{country:8} {orders:5} {amount:12,}".format(**row))
)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--on", choices=("spark", "embedded"), default="spark")
    p.run(on=parser.parse_args().on)
