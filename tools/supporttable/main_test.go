package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const results = `a message of the go command
{"Action":"run","Test":"TestContract/15.18/the_log"}
{"Action":"pass","Test":"TestContract/15.18/the_log/part"}
{"Action":"pass","Test":"TestContract/15.18/the_log"}
{"Action":"pass","Test":"TestContract/14.23/the_log"}
{"Action":"skip","Test":"TestContract/14.23/a,_b"}
{"Action":"pass","Test":"TestContract/15.18/a,_b"}
{"Action":"pass","Test":"TestContract/15.18#01/a,_b"}
{"Action":"pass","Test":"TestContract/15.18"}
{"Action":"pass","Test":"TestOther/15.18/other"}
`

// One of two servers of a version failed.
var failing = strings.Replace(results,
	`"pass","Test":"TestContract/15.18/a,_b"`, `"fail","Test":"TestContract/15.18/a,_b"`, 1)

const want = `| proven end to end on PostgreSQL | 14 | 15 |
| --- | --- | --- |
| the log | yes | yes |
| a, b | – | yes |
`

func TestTable(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "README.md")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("no markers\n")
	if err := run(strings.NewReader(results), file, false); err == nil {
		t.Error("a file without markers is accepted")
	}
	const before, after = "# Title\n\n" + begin + "\n", end + "\n\nText\n"
	write(before + "old\n" + after)
	if err := run(strings.NewReader(results), file, true); !errors.Is(err, errStale) {
		t.Errorf("an old table: %v", err)
	}
	if err := run(strings.NewReader(results), file, false); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(file); string(got) != before+want+after {
		t.Errorf("got\n%s", got)
	}
	if err := run(strings.NewReader(results), file, true); err != nil {
		t.Errorf("the table that was just made: %v", err)
	}
	for _, check := range []bool{false, true} {
		err := run(strings.NewReader(failing), file, check)
		if err == nil || !strings.Contains(err.Error(), `"a, b" on 15 failed`) {
			t.Errorf("a run that failed, check %v: %v", check, err)
		}
	}
	if got, _ := os.ReadFile(file); string(got) != before+want+after {
		t.Errorf("it is written:\n%s", got)
	}
	if err := run(strings.NewReader("{}\n"), file, true); err == nil {
		t.Error("results without the test are accepted")
	}
}
