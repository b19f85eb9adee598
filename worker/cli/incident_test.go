package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/history/incident"
)

// checkTake takes an incident of a server in which one session blocks another, without a worker.
func checkTake(t *testing.T, dataDir, recordDir string, holder uint32) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "incident.json")
	var text []byte
	pgtest.Wait(t, "an incident with all stacks", func() bool { // the first stack needs the server's program, which a slow disk gives late
		if status, out, errOut := run(t, "incident", "take", "-D", dataDir, "--record-dir", recordDir, "-o", file, "--note", "the note", "--profile", "500ms"); status != exitOK || out != "" {
			t.Fatalf("status %d, %s%s", status, out, errOut)
		}
		var err error
		if text, err = os.ReadFile(file); err != nil {
			t.Fatal(err)
		}
		return !tooSlow.Match(text)
	})
	st, err := os.Stat(file)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	var i incident.Incident
	if err := json.Unmarshal(text, &i); err != nil {
		t.Fatal(err)
	}
	if i.Schema != incident.Schema || i.Reason.Rule != incident.Manual || !strings.Contains(i.Reason.Summary, "the note") || len(i.Forest) != 1 ||
		uint32(i.Forest[0].PID) != holder || len(i.Forest[0].Blocked) != 1 || len(i.Stacks) < 2 || i.Stacks[0].Stack == nil {
		t.Errorf("%s", text)
	}
	if i.Profile == nil || i.Profile.Error != "" || len(i.Profile.Stacks) == 0 {
		t.Errorf("profile %+v", i.Profile)
	}
	if strings.Contains(string(text), "1471147114") {
		t.Errorf("a value of a query is in %s", text)
	}
	status, out, _ := run(t, "incident", "take", "-D", dataDir, "--profile", "0")
	if status != exitOK || !strings.Contains(out, fmt.Sprintf("\n  %d (", holder)) || !strings.Contains(out, "ProcSleep") {
		t.Errorf("status %d: %s", status, out)
	}
	nowhere := filepath.Join(t.TempDir(), "nosuch")
	const missing = "history: no history is recorded for cluster"
	if status, out, _ := run(t, "incident", "take", "-D", dataDir, "--record-dir", nowhere, "--profile", "0"); status != exitOK || !strings.Contains(out, missing) {
		t.Errorf("text without a history: status %d: %s", status, out)
	}
	status, _, errOut := run(t, "incident", "take", "-D", dataDir, "--record-dir", nowhere, "--profile", "0", "-o", filepath.Join(t.TempDir(), "i.html"))
	if status != exitOK || !strings.Contains(errOut, "missing: "+missing) {
		t.Errorf("page without a history: status %d: %s", status, errOut)
	}
	if status, out, _ := run(t, "incident", "list", "--record-dir", recordDir); status != exitOK || !strings.Contains(out, "no incidents in") {
		t.Errorf("status %d: %s", status, out)
	}
	if status, _, errOut := run(t, "incident", "show", "--record-dir", recordDir, "last"); status != exitFailed || !strings.Contains(errOut, "no such incident") {
		t.Errorf("status %d: %s", status, errOut)
	}
}

// TestIncidentRefuses expects messages for wrong flags and arguments.
func TestIncidentRefuses(t *testing.T) {
	t.Setenv("STATE_DIRECTORY", "")
	empty := t.TempDir()
	for arguments, want := range map[string]string{
		"incident":                            "give a command: take, list, show or bundle",
		"incident list":                       "give the directory of the history",
		"incident show x":                     "give the directory of the history",
		"incident bundle x":                   "give the name of the zip file with -o",
		"incident show":                       "wrong number of arguments, 0",
		"incident list -f x":                  "--format must be text or json",
		"incident list --record-dir " + empty: "no history is recorded in",
		"incident list --record-dir " + empty + " --cluster ..": "no history is recorded for",
		"incident take --record-query-text x":                   "must be off, normalized or all",
		"incident take --profile 1h":                            "--profile must be a time from 0 to 10m0s",
		"incident take -D " + empty:                             empty,
		"rules":                                                 "give a command: list or check",
		"rules check":                                           "wrong number of arguments, 0",
		"rules check /none":                                     "no such file",
		"rules list --rules /none":                              "no such file",
	} {
		if status, out, errOut := run(t, strings.Fields(arguments)...); status == exitOK || !strings.Contains(errOut, want) || out != "" {
			t.Errorf("%s: status %d, %q%q; want %q", arguments, status, out, errOut, want)
		}
	}
}

// TestRules prints and checks a file.
func TestRules(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, []byte("rules: {lock_wait: {after: 33s}, starved: off}\nwebhook: {url: 'http://user:secret@host/'}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for arguments, want := range map[string][]string{
		"rules list":                         {"lock_wait", "after 10 s", "above 90 %", "webhook: none"},
		"rules list --rules " + file:         {"after 33 s", "webhook: yes"},
		"rules list -f json --rules " + file: {`"after_seconds":33`, `"off":true`},
		"rules check " + file:                {"is valid"},
	} {
		status, out, errOut := run(t, strings.Fields(arguments)...)
		for _, w := range want {
			if status != exitOK || !strings.Contains(out, w) || strings.Contains(out, "secret") {
				t.Errorf("%s: status %d, %s%s; want %q", arguments, status, out, errOut, w)
			}
		}
	}
	if err := os.WriteFile(file, []byte("rules:\n  lock_wait: {afer: 33s}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if status, _, errOut := run(t, "rules", "check", file); status != exitFailed || !strings.Contains(errOut, `line 2: rule lock_wait has no setting "afer"; it has after`) {
		t.Errorf("status %d: %s", status, errOut)
	}
}
