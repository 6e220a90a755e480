"""Makes the invented data of the examples, the same each time: ``python make_data.py``.

A web server's log in the combined format, of which about one line in a hundred is damaged, and a
small shop's customers and orders, of which a few are by customers that nobody knows.
"""

import csv
import gzip
import io
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

REQUESTS = 20_000
CUSTOMERS = 60
ORDERS = 1_500

PAGES = [
    "/",
    "/index.html",
    "/about",
    "/contact",
    "/search",
    "/login",
    "/basket",
    "/robots.txt",
    "/favicon.ico",
    *(f"/products/{number}" for number in range(100, 160)),
    *(f"/blog/2024/{month:02}" for month in range(1, 13)),
    *(f"/img/{name}.png" for name in ("logo", "banner", "icons", "map")),
]
AGENTS = ["Mozilla/5.0 (X11; Linux x86_64)", "Mozilla/5.0 (iPhone)", "curl/8.5.0", "ExampleBot/1.0"]
COUNTRIES = ["BR", "DE", "FR", "IN", "JP", "KE", "NZ", "PT", "US"]
PRODUCTS = [("anvil", 8999), ("kettle", 2450), ("lantern", 1799), ("rope", 725), ("teapot", 1499)]


def access_log(seed: int = 7) -> str:
    chance = random.Random(seed)
    # Few pages get most of the requests, as on any site.
    weights = [1 / (rank + 1) for rank in range(len(PAGES))]
    now = datetime(2024, 5, 1, tzinfo=UTC)
    lines = []
    for _ in range(REQUESTS):
        now += timedelta(seconds=chance.expovariate(1 / 4))
        page = chance.choices(PAGES, weights)[0]
        if page == "/search":
            page += f"?q={chance.choice(PRODUCTS)[0]}"
        status = chance.choices([200, 304, 404, 500], [90, 6, 3, 1])[0]
        size = 0 if status == 304 else chance.randint(200, 40_000)
        line = (
            f"{chance.choice(('192.0.2', '198.51.100', '203.0.113'))}.{chance.randint(1, 254)} - - "
            f'[{now:%d/%b/%Y:%H:%M:%S %z}] "GET {page} HTTP/1.1" {status} {size or "-"} '
            f'"-" "{chance.choice(AGENTS)}"'
        )
        lines.append(damaged(line, chance) if chance.random() < 0.01 else line)
    return "\n".join(lines) + "\n"


def damaged(line: str, chance: random.Random) -> str:
    kind = chance.randrange(3)
    if kind == 0:
        return line[: chance.randint(1, 60)]  # cut off in the middle
    if kind == 1:
        return line.replace('"GET', '"\\x16\\x03\\x01', 1).replace(
            "HTTP/1.1", ""
        )  # not HTTP at all
    return ""


def shop(seed: int = 11) -> tuple[str, str]:
    chance = random.Random(seed)
    customers = [
        (number, f"Customer {number}", chance.choice(COUNTRIES))
        for number in range(1, CUSTOMERS + 1)
    ]
    orders = []
    for number in range(1, ORDERS + 1):
        customer = chance.randint(1, CUSTOMERS) if chance.random() > 0.02 else 900 + number % 7
        product, price = chance.choice(PRODUCTS)
        quantity = chance.randint(1, 4)
        orders.append((number, customer, product, quantity, f"{price * quantity / 100:.2f}"))
    return (
        table(("id", "name", "country"), customers),
        table(("id", "customer_id", "product", "quantity", "amount"), orders),
    )


def table(header: tuple, rows: list) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


if __name__ == "__main__":
    here = Path(__file__).parent
    here.joinpath("access.log.gz").write_bytes(gzip.compress(access_log().encode(), mtime=0))
    for name, content in zip(("customers.csv", "orders.csv"), shop(), strict=True):
        here.joinpath(name).write_text(content, encoding="utf-8")
