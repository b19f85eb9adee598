package limits_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/worker/limits"
)

// TestScriptsAndDocuments: the values in the SQL scripts and in the documents are those of the code. A pattern must
// match, and each match must have the values.
func TestScriptsAndDocuments(t *testing.T) {
	t.Parallel()
	texts := make(map[string]string)
	for _, c := range []struct {
		file, pattern string
		values        []any
	}{
		{"sql/src/calls.sql", `cardinality\(targets\) > (\d+)`, []any{limits.MaxTargets}},
		{"sql/src/calls.sql", `cannot ask for more than (\d+)`, []any{limits.MaxTargets}},
		{"sql/src/calls.sql", `coalesce\(setting, '(\d+)'\)`, []any{snapshot.DefaultDeadline.Milliseconds()}},
		{"sql/src/calls.sql", `milliseconds, from 1 to (\d+)`, []any{limits.MaxTimeout}},
		{"sql/src/queue.sql", `most +CONSTANT int := (\d+)`, []any{limits.QueueMaxBatch}},
		{"sql/src/queue.sql", `queue +CONSTANT int := (\d+)`, []any{limits.QueueWaiting}},
		{"sql/src/queue-worker.sql", `queue +CONSTANT int := (\d+)`, []any{limits.QueueWaiting}},
		{"doc/worker.md", "each (\\d+) frames beyond the first (\\d+) of a stack, count as one",
			[]any{unwind.DefaultMaxFrames, unwind.DefaultMaxFrames}},
		{"doc/worker.md", "at least (\\d+) and at most (\\d+) \\(`--sessions`\\)", []any{limits.MinSessions, limits.MaxSessions}},
		{"worker/cli/worker.go", "a tenth of max_connections, from (\\d+) to (\\d+)", []any{limits.MinSessions, limits.MaxSessions}},
		{"doc/serving.md", `The worker samples the server all the time, (\d+) times a second`, []any{limits.ExportRate}},
		{"doc/reference-sql.md", `max_frames. .* 1 to (\d+) \| (\d+) \|`, []any{limits.MaxFrames, unwind.DefaultMaxFrames}},
		{"doc/reference-sql.md", `timeout. \| .* 1 to (\d+); .* \| (\d+) \|`,
			[]any{limits.MaxTimeout, snapshot.DefaultDeadline.Milliseconds()}},
		{"doc/reference-sql.md", `in that order; at most ([\d,]+)`, []any{limits.QueueMaxBatch}},
		{"doc/reference-sql.md", `superuser may have ([\d,]+) requests waiting`, []any{limits.QueueWaiting}},
		{"doc/troubleshooting.md", `cannot ask for more than (\d+) processes`, []any{limits.MaxTargets}},
		{"doc/troubleshooting.md", `no more than (\d+) functions can be traced`, []any{limits.Traces}},
	} {
		if texts[c.file] == "" {
			text, err := os.ReadFile(filepath.Join("..", "..", c.file))
			if err != nil {
				t.Fatal(err)
			}
			texts[c.file] = string(text)
		}
		found := regexp.MustCompile(c.pattern).FindAllStringSubmatch(texts[c.file], -1)
		if len(found) == 0 {
			t.Errorf("%s has no %s", c.file, c.pattern)
		}
		for _, values := range found {
			for i, want := range c.values {
				if got := strings.ReplaceAll(values[i+1], ",", ""); got != fmt.Sprint(want) {
					t.Errorf("%s: %q has %s, and the code has %v", c.file, values[0], got, want)
				}
			}
		}
	}
}

// TestRequestsFitIntoFiles: the extension refuses a request before the worker would.
func TestRequestsFitIntoFiles(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../sql/src/calls.sql")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`length\(request\) > (\d+)`).FindSubmatch(text)
	if len(found) == 0 {
		t.Fatal("calls.sql has no limit of a request")
	}
	var most int
	if _, err := fmt.Sscan(string(found[1]), &most); err != nil || most > limits.MaxRequest {
		t.Errorf("%d bytes, and the worker accepts %d (%v)", most, limits.MaxRequest, err)
	}
}
