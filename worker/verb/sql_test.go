package verb

import (
	"os"
	"regexp"
	"slices"
	"testing"
)

// TestVerbsOfTheExtension: each verb of the worker is in the extension's list of privileges, and the other way round.
func TestVerbsOfTheExtension(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../sql/src/names.sql")
	if err != nil {
		t.Fatal(err)
	}
	known := []string{verbStat} // the privilege is SELECT on the view
	for _, found := range regexp.MustCompile(`WHEN '(\w+)' THEN '@extschema@`).FindAllSubmatch(text, -1) {
		known = append(known, string(found[1]))
	}
	// The extension checks these itself, and writes "get" or "log" into the queue.
	known = slices.DeleteFunc(known, func(name string) bool { return name == "request" || name == "requests" })
	slices.Sort(known)
	if names := Names(); !slices.Equal(names, known) {
		t.Errorf("the worker has %q, and the extension has %q", names, known)
	}
}

// TestQueuedVerbs: requests that do not wait accept the two verbs for the stack of one process.
func TestQueuedVerbs(t *testing.T) {
	t.Parallel()
	for _, name := range Names() {
		if queued := name == "get" || name == "log"; verbs[name].Queued != queued {
			t.Errorf("%s: queued %v", name, verbs[name].Queued)
		}
	}
}
