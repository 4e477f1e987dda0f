"""The names of the commands that a client may send, so that a fault for none of them is an error.

Source: MongoDB's manual, "Database Commands", and those that drivers send to older servers.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

COMMANDS: Final = frozenset({
    "abortReshardCollection", "abortTransaction", "abortUnshardCollection", "addShard",
    "addShardToZone", "aggregate", "analyze", "appendOplogNote", "applyOps", "authenticate",
    "autoCompact", "autoSplitVector", "balancerCollectionStatus", "balancerStart",
    "balancerStatus", "balancerStop", "buildInfo", "buildinfo", "bulkWrite",
    "checkMetadataConsistency", "checkShardingIndex", "cleanupOrphaned",
    "cleanupReshardCollection", "cleanupStructuredEncryptionData", "clearJumboFlag",
    "cloneCollectionAsCapped", "collMod", "collStats", "commitReshardCollection",
    "commitTransaction", "compact", "compactStructuredEncryptionData",
    "configureCollectionBalancing", "configureFailPoint", "configureQueryAnalyzer", "connPoolStats",
    "connPoolSync", "connectionStatus", "convertToCapped", "coordinateCommitTransaction", "count",
    "create", "createIndexes", "createRole", "createSearchIndexes", "createUser", "currentOp",
    "dataSize", "dbHash", "dbStats", "dbhash", "dbstats", "delete", "distinct", "drop",
    "dropAllRolesFromDatabase", "dropAllUsersFromDatabase", "dropConnections", "dropDatabase",
    "dropIndexes", "dropRole", "dropSearchIndex", "dropUser", "enableSharding", "endSessions",
    "explain", "features", "filemd5", "find", "findAndModify", "findandmodify", "flushRouterConfig",
    "fsync", "fsyncUnlock", "getAuditConfig", "getClusterParameter", "getCmdLineOpts",
    "getDefaultRWConcern", "getDiagnosticData", "getLog", "getMore", "getParameter", "getShardMap",
    "getShardVersion", "getnonce", "godinsert", "grantPrivilegesToRole", "grantRolesToRole",
    "grantRolesToUser", "hello", "hostInfo", "insert", "invalidateUserCache", "isMaster",
    "isdbgrid", "ismaster", "killAllSessions", "killAllSessionsByPattern", "killCursors", "killOp",
    "killSessions", "listCollections", "listCommands", "listDatabases", "listIndexes",
    "listSearchIndexes", "listShards", "lockInfo", "logApplicationMessage", "logRotate", "logout",
    "mapReduce", "mapreduce", "medianKey", "mergeAllChunksOnShard", "mergeChunks", "moveChunk",
    "moveCollection", "movePrimary", "moveRange", "netstat", "ping", "planCacheClear",
    "planCacheClearFilters", "planCacheListFilters", "planCacheSetFilter", "prepareTransaction",
    "profile", "reIndex", "refineCollectionShardKey", "refreshSessions", "removeQuerySettings",
    "removeShard", "removeShardFromZone", "renameCollection", "replSetAbortPrimaryCatchUp",
    "replSetFreeze", "replSetGetConfig", "replSetGetStatus", "replSetInitiate",
    "replSetMaintenance", "replSetReconfig", "replSetResizeOplog", "replSetStepDown",
    "replSetSyncFrom", "resetPlacementHistory", "reshardCollection", "resize",
    "revokePrivilegesFromRole", "revokeRolesFromRole", "revokeRolesFromUser", "rolesInfo",
    "rotateCertificates", "saslContinue", "saslStart", "serverStatus", "setAllowMigrations",
    "setAuditConfig", "setClusterParameter", "setDefaultRWConcern",
    "setFeatureCompatibilityVersion", "setIndexCommitQuorum", "setParameter", "setQuerySettings",
    "setShardVersion", "setUserWriteBlockMode", "shardCollection", "shardConnPoolStats",
    "shardingState", "shutdown", "sleep", "split", "splitChunk", "splitVector", "startSession",
    "testDeprecation", "testRemoval", "testVersions1And2", "testVersion2", "top",
    "transitionFromDedicatedConfigServer", "transitionToDedicatedConfigServer",
    "unsetSharding", "unshardCollection", "untrackUnshardedCollection", "update", "updateRole",
    "updateSearchIndex", "updateUser", "updateZoneKeyRange", "usersInfo", "validate",
    "validateDBMetadata", "voteAbortIndexBuild", "voteCommitIndexBuild", "waitForFailPoint",
    "whatsmyuri",
})  # fmt: skip


def hint(name: str) -> str:
    """The nearest name, as a question; nothing where none is near."""
    by_lower = {each.lower(): each for each in sorted(COMMANDS, reverse=True)}
    nearest = get_close_matches(name.lower().replace("_", ""), by_lower, n=1)
    return f"; did you mean {by_lower[nearest[0]]!r}?" if nearest else ""
