"""An application to test: a shop that takes orders, with pymongo and nothing around it."""

from __future__ import annotations

from typing import Any


def place_order(orders: Any, number: int) -> None:
    orders.insert_one({"number": number, "paid": False})


def pay(orders: Any, number: int, cents: int) -> None:
    orders.update_one({"number": number}, {"$inc": {"cents": cents}})


async def place_order_async(orders: Any, number: int) -> None:
    await orders.insert_one({"number": number, "paid": False})


async def pay_async(orders: Any, number: int, cents: int) -> None:
    await orders.update_one({"number": number}, {"$inc": {"cents": cents}})
