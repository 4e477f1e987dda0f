"""How to call each public method of ClientEncryption, with a key of its own."""

from __future__ import annotations

from typing import Any

from bson import Binary
from pymongo.asynchronous.encryption import AsyncClientEncryption
from pymongo.encryption_options import RangeOpts
from pymongo.synchronous.encryption import Algorithm, ClientEncryption
from support.every_operation import Scene

RANDOM = Algorithm.AEAD_AES_256_CBC_HMAC_SHA_512_Random
FIELDS = {"fields": [{"path": "secret", "bsonType": "string", "keyId": None}]}
RANGE = RangeOpts(min=0, max=9, sparsity=1, trim_factor=1)


def make(scene: Scene) -> Any:
    """A new one: it keeps the keys that it has fetched."""
    cls: Any = AsyncClientEncryption if scene.side.runner else ClientEncryption
    given = {"local": {"key": bytes(96)}}, f"{scene.name}.keys", scene.client

    async def in_the_loop() -> Any:
        return cls(*given, scene.client.codec_options)

    return scene.do(in_the_loop) if scene.side.runner else cls(*given, scene.client.codec_options)


def _key(scene: Scene, *names: str) -> Binary:
    made: Binary = scene.do(make(scene).create_data_key, "local", key_alt_names=list(names) or None)
    return made


def _encrypted(scene: Scene) -> Binary:
    made: Binary = scene.do(make(scene).encrypt, "secret", RANDOM, key_id=_key(scene))
    return made


def _with_key(method: str, *args: Any) -> Any:
    return lambda s: s.do(getattr(make(s), method), _key(s), *args)


SENDING = {
    "create_data_key": _key,
    "add_key_alt_name": _with_key("add_key_alt_name", "name"),
    "remove_key_alt_name": _with_key("remove_key_alt_name", "name"),
    "get_key": _with_key("get_key"),
    "delete_key": _with_key("delete_key"),
    "get_key_by_alt_name": lambda s: s.do(make(s).get_key_by_alt_name, "name"),
    "get_keys": lambda s: s.all(s.do(make(s).get_keys)),
    "rewrap_many_data_key": lambda s: s.do(make(s).rewrap_many_data_key, {}, "local"),
    "encrypt": _encrypted,
    "decrypt": lambda s: s.do(make(s).decrypt, _encrypted(s)),
    "encrypt_expression": lambda s: s.do(
        make(s).encrypt_expression,
        {"$and": [{"n": {"$gte": 1}}, {"n": {"$lte": 2}}]},
        Algorithm.RANGE,
        query_type="range",
        contention_factor=0,
        key_id=_key(s),
        range_opts=RANGE,
    ),
    "create_encrypted_collection": lambda s: s.do(
        make(s).create_encrypted_collection, s.db, "encrypted", FIELDS, "local"
    ),
}
