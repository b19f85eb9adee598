package store

import (
	"slices"
	"strings"
)

// maxTag is the greatest number of words in the tag of a utility statement, such as ALTER DEFAULT ... (see tagOf).
const maxTag = 3

// isQuery reports whether a statement with this first word is kept, without its literals. The commands in the second line have only
// names and options. Other statements have values in places where a lexer cannot find them. Of these, only the tag is kept.
func isQuery(first string) bool {
	return slices.Contains([]string{
		"SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", "WITH", "VALUES", "TABLE",
		"ANALYZE", "CLUSTER", "LOCK", "REFRESH", "REINDEX", "TRUNCATE", "VACUUM",
	}, strings.ToUpper(first))
}

// commands returns the first words of utility statements and of replication commands.
func commands() []string {
	return []string{
		"ABORT", "ALTER", "ANALYSE", "ANALYZE", "BASE_BACKUP", "BEGIN", "CALL", "CHECKPOINT", "CLOSE", "CLUSTER", "COMMENT",
		"COMMIT", "COPY", "CREATE", "CREATE_REPLICATION_SLOT", "DEALLOCATE", "DECLARE", "DISCARD", "DO", "DROP",
		"DROP_REPLICATION_SLOT", "END", "EXECUTE", "EXPLAIN", "FETCH", "GRANT", "IDENTIFY_SYSTEM", "IMPORT", "LISTEN", "LOAD",
		"LOCK", "MOVE", "NOTIFY", "PREPARE", "READ_REPLICATION_SLOT", "REASSIGN", "REFRESH", "REINDEX", "RELEASE", "RESET",
		"REVOKE", "ROLLBACK", "SAVEPOINT", "SECURITY", "SET", "SHOW", "START", "START_REPLICATION", "TIMELINE_HISTORY",
		"TRUNCATE", "UNLISTEN", "UPLOAD_MANIFEST", "VACUUM",
	}
}

// objects returns the words after ALTER, CREATE and DROP that are a kind of object, or a part of its name.
func objects() []string {
	return []string{
		"ACCESS", "AGGREGATE", "CAST", "COLLATION", "CONVERSION", "DATABASE", "DEFAULT", "DOMAIN", "EVENT", "EXTENSION",
		"FOREIGN", "FUNCTION", "GROUP", "INDEX", "LANGUAGE", "LARGE", "MATERIALIZED", "OPERATOR", "OR", "OWNED", "POLICY",
		"PROCEDURE", "PUBLICATION", "ROLE", "ROUTINE", "RULE", "SCHEMA", "SEQUENCE", "SERVER", "STATISTICS", "SUBSCRIPTION",
		"SYSTEM", "TABLE", "TABLESPACE", "TEMP", "TEMPORARY", "TEXT", "TRANSFORM", "TRIGGER", "TYPE", "UNIQUE", "UNLOGGED",
		"USER", "VIEW",
	}
}

// tagOf returns the tag of a utility statement with these first words. A token that is not a word is an empty string. The
// result has only words of commands and objects, since any other word may be a value. It is "?" for an unknown command.
func tagOf(words []string) string {
	if len(words) == 0 || !slices.Contains(commands(), words[0]) {
		return removed
	}
	if !slices.Contains([]string{"ALTER", "CREATE", "DROP"}, words[0]) {
		return words[0]
	}
	tag := words[:1]
	for _, w := range words[1:] {
		if !slices.Contains(append(objects(), "REPLACE"), w) {
			break
		}
		tag = append(tag, w)
		if w == "TABLE" || w == "INDEX" || w == "ROLE" || w == "USER" || w == "FUNCTION" || w == "DATABASE" {
			break
		}
	}
	return strings.Join(tag, " ")
}
