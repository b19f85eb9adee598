package moment

import "testing"

func TestLockWords(t *testing.T) {
	for _, c := range []struct{ lock, object, relation, words, database string }{
		{"tuple", "5/16498 (0,1)", "stock", "row (0,1) of stock", ""},
		{"tuple", "5/16498 (0,1)", "", "row (0,1) of relation 16498", "5"},
		{"relation", "5/16498", "a/b", "relation a/b", ""},
		{"relation", "0/1262", "", "relation 1262", "0"},
		{"extend", "5/16498", "stock", "extension of stock", ""},
		{"page", "5/16498 page 7", "stock", "page 7 of stock", ""},
		{"tuple", "tuple (0,1) of a/b (relation 7 of database 5)", "", "tuple (0,1) of a/b (relation 7 of database 5)", ""},
		{"advisory", "16386 key -7", "", "advisory lock -7", ""},
		{"advisory", "16386 keys 1, -2", "", "advisory lock (1, -2)", ""},
		{"advisory", "advisory lock 7 of database 5", "", "advisory lock 7 of database 5", ""},
		{"transactionid", "753", "", "transactionid 753", ""},
		{"synchronous replication", "", "", "synchronous replication", ""},
	} {
		if words, database := LockWords(c.lock, c.object, c.relation); words != c.words || database != c.database {
			t.Errorf("%+v: %q, %q", c, words, database)
		}
	}
}

func TestWithoutName(t *testing.T) {
	for object, want := range map[string]string{
		"a of b (relation 7 of database 5)":                "relation 7 of database 5",
		"tuple (0,1) of a of b (relation 7 of database 5)": "tuple (0,1) of relation 7 of database 5",
		"tuple (0,1) of relation 7 of database 5":          "tuple (0,1) of relation 7 of database 5",
		"page 3 of secret (relation 7 of database 5)":      "page 3 of relation 7 of database 5",
		"extension of secret (relation 7 of database 5)":   "extension of relation 7 of database 5",
		"page of secrets (relation 7 of database 5)":       "relation 7 of database 5",
		"advisory lock 7 of database 5":                    "advisory lock 7 of database 5",
	} {
		if got := WithoutName(object); got != want {
			t.Errorf("%s: %q, want %q", object, got, want)
		}
	}
}

func TestObjectOfRecorder(t *testing.T) {
	for words, want := range map[string][2]string{
		"relation 7 of database 5":                             {"5/7", ""},
		"stock (relation 7 of database 5)":                     {"5/7", "stock"},
		"a (b) (relation 7 of database 5)":                     {"5/7", "a (b)"},
		"tuple (0,1) of stock (relation 7 of database 5)":      {"5/7 (0,1)", "stock"},
		"tuple (0,1) of relation 7 of database 5":              {"5/7 (0,1)", ""},
		"page 3 of a\nb (relation 7 of database 5)":            {"5/7 page 3", "a\nb"},
		"extension of stock (relation 7 of database 5)":        {"5/7", "stock"},
		"transaction 753":                                      {"753", ""},
		"virtual transaction 3/4":                              {"3/4", ""},
		"speculative token 1 of transaction 753":               {"753 token 1", ""},
		"frozen ids of database 5":                             {"5", ""},
		"remote transaction 9 of subscription 8 of database 5": {"5 subscription 8 transaction 9", ""},
		"advisory lock -7 of database 5":                       {"5 key -7", ""},
		"advisory lock (1, -2) of database 5":                  {"5 keys 1, -2", ""},
		"object 9 of class 1259 of database 5":                 {"5 class 1259 object 9", ""},
		"what a later version writes":                          {"what a later version writes", ""},
		"":                                                     {"", ""},
	} {
		if object, relation := ObjectOf(words); object != want[0] || relation != want[1] {
			t.Errorf("%q: %q, %q, want %q", words, object, relation, want)
		}
	}
}
