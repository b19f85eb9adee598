package main

// enumerators returns the entries of the tables of names. A name that begins with "-" is empty in the result.
func enumerators() []entry {
	tables := map[string]map[string]string{
		"BackendTypes": {
			"B_INVALID": "-", "B_BACKEND": "client backend", "B_DEAD_END_BACKEND": "dead-end client backend",
			"B_AUTOVAC_LAUNCHER": "autovacuum launcher", "B_AUTOVAC_WORKER": "autovacuum worker",
			"B_BG_WORKER": "background worker", "B_BG_WRITER": "background writer", "B_CHECKPOINTER": "checkpointer",
			"B_STARTUP": "startup", "B_WAL_RECEIVER": "walreceiver", "B_WAL_SENDER": "walsender",
			"B_WAL_WRITER": "walwriter", "B_ARCHIVER": "archiver", "B_STATS_COLLECTOR": "stats collector",
			"B_LOGGER": "logger", "B_STANDALONE_BACKEND": "standalone backend",
			"B_SLOTSYNC_WORKER": "slotsync worker", "B_WAL_SUMMARIZER": "walsummarizer", "B_IO_WORKER": "io worker",
		},
		"BackendStates": {
			"STATE_UNDEFINED": "-", "STATE_STARTING": "starting", "STATE_IDLE": "idle", "STATE_RUNNING": "active",
			"STATE_IDLEINTRANSACTION": "idle in transaction", "STATE_FASTPATH": "fastpath function call",
			"STATE_IDLEINTRANSACTION_ABORTED": "idle in transaction (aborted)", "STATE_DISABLED": "disabled",
		},
		"LockTagTypes": {
			"LOCKTAG_RELATION": "relation", "LOCKTAG_RELATION_EXTEND": "extend",
			"LOCKTAG_DATABASE_FROZEN_IDS": "frozenid", "LOCKTAG_PAGE": "page", "LOCKTAG_TUPLE": "tuple",
			"LOCKTAG_TRANSACTION": "transactionid", "LOCKTAG_VIRTUALTRANSACTION": "virtualxid",
			"LOCKTAG_SPECULATIVE_TOKEN": "spectoken", "LOCKTAG_OBJECT": "object", "LOCKTAG_USERLOCK": "userlock",
			"LOCKTAG_ADVISORY": "advisory", "LOCKTAG_APPLY_TRANSACTION": "applytransaction",
		},
		"StmtTypes": {
			"PLPGSQL_STMT_BLOCK": "block", "PLPGSQL_STMT_ASSIGN": "assign", "PLPGSQL_STMT_IF": "if",
			"PLPGSQL_STMT_CASE": "case", "PLPGSQL_STMT_LOOP": "loop", "PLPGSQL_STMT_WHILE": "while",
			"PLPGSQL_STMT_FORI": "fori", "PLPGSQL_STMT_FORS": "fors", "PLPGSQL_STMT_FORC": "forc",
			"PLPGSQL_STMT_FOREACH_A": "foreach_a", "PLPGSQL_STMT_EXIT": "exit", "PLPGSQL_STMT_RETURN": "return",
			"PLPGSQL_STMT_RETURN_NEXT": "return_next", "PLPGSQL_STMT_RETURN_QUERY": "return_query",
			"PLPGSQL_STMT_RAISE": "raise", "PLPGSQL_STMT_ASSERT": "assert", "PLPGSQL_STMT_EXECSQL": "execsql",
			"PLPGSQL_STMT_DYNEXECUTE": "dynexecute", "PLPGSQL_STMT_DYNFORS": "dynfors",
			"PLPGSQL_STMT_GETDIAG": "getdiag", "PLPGSQL_STMT_OPEN": "open", "PLPGSQL_STMT_FETCH": "fetch",
			"PLPGSQL_STMT_CLOSE": "close", "PLPGSQL_STMT_PERFORM": "perform", "PLPGSQL_STMT_CALL": "call",
			"PLPGSQL_STMT_COMMIT": "commit", "PLPGSQL_STMT_ROLLBACK": "rollback", "PLPGSQL_STMT_SET": "set",
		},
	}
	var entries []entry
	for table, names := range tables {
		for enumerator, name := range names {
			entries = append(entries, entry{table + "=" + name, enumerator})
		}
	}
	return entries
}
