package rules

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestParse(t *testing.T) {
	t.Parallel()
	c, err := Parse([]byte(`
# comment
rules:
  lock_wait: {after: 30s}
  commit_wait: off
  connections:
    above: 95%
  starved: on
incidents: {cooldown: 1h, per_hour: 3, keep: 7, size: 5MB}
webhook:
  url: https://user:secret@alerts.example.com/hook
  timeout: 1s
`))
	if err != nil {
		t.Fatal(err)
	}
	if c.Rule(LockWait).After != 30*time.Second || !c.Rule(CommitWait).Off || c.Rule(Connections).Above != 95 || c.Rule(Starved).Off ||
		c.Cooldown != time.Hour || c.Budget != 3 || c.Keep != 7 || c.Size != 5<<20 || c.Webhook.Timeout != time.Second || c.Webhook.URL == "" {
		t.Errorf("%+v", c)
	}
	for _, empty := range []string{"", "# nothing\n", "rules:\n", "---\n", "rules: {}\nwebhook: null\n"} {
		if _, err := Parse([]byte(empty)); err != nil {
			t.Errorf("%q: %v", empty, err)
		}
	}
}

// TestParseErrors expects the line and the reason.
func TestParseErrors(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"rule: {}":                                  `line 1: unknown name "rule"`,
		"rules:\n  lock_wait: {after: 10}":          `line 2: after must be a time such as 10s, not "10"`,
		"rules:\n  lock_wait:\n    after: -1s":      "line 3: after must be from 10ms",
		"rules:\n  lock_wait: {above: 10}":          `line 2: rule lock_wait has no setting "above"; it has after`,
		"rules:\n  connections: {after: 1s}":        `line 2: rule connections has no setting "after"; it has above`,
		"rules:\n  connections: {above: 101}":       "line 2: above must be a number from 1 to 99",
		"rules:\n  locks: off":                      `line 2: unknown rule "locks"; known are lock_wait`,
		"rules:\n  lock_wait: maybe":                "line 2: lock_wait must be on, off or a mapping",
		"rules:\n  lock_wait: off\n  lock_wait: on": `line 3: "lock_wait" occurs twice`,
		"rules: []":                                        "line 1: rules must be a mapping",
		"[]":                                               "line 1: the file must be a mapping",
		"rules: &a {}\nincidents: *a":                      "line 1: rules: anchors and aliases are not allowed",
		"rules: {}\n---\nrules: {}":                        "a second document",
		"rules:\n\tlock_wait: off":                         "line 2",
		"incidents: {size: 1}":                             "line 1: size must be a size",
		"incidents: {size: 99999999999GB}":                 "line 1: size must be a size",
		"incidents: {per_hour: 0}":                         "line 1: per_hour must be a number",
		"webhook: {url: file:///etc/passwd}":               "line 1: url must be an address",
		"webhook: {url: 'ftp://secret@host/'}":             "line 1: url must begin with http",
		"webhook: {timeout: 1s}":                           "line 1: webhook needs a url",
		"webhook: {url: {}}":                               "line 1: url must be an address",
		"command: {timeout: 1s}":                           "line 1: command needs run",
		"command: {run: 'mail dba; id'}":                   "line 1: run must be a list",
		"command: {run: []}":                               "line 1: run must be a list",
		"command: {run: [mail, dba]}":                      "line 1: run: the program must be an absolute path",
		"command: {run: [/bin/../tmp/x]}":                  "line 1: run: the program must be an absolute path",
		"command: {run: [/bin/mail, [dba]]}":               "line 1: run: each argument must be a text",
		"command: {run: [/bin/mail, \"a\\0b\"]}":           "line 1: run: an argument must have",
		"command:\n  run: [/bin/mail]\n  timeout: 11s":     "line 3: timeout must be from 10ms to 10s",
		"command: [/bin/mail]":                             "line 1: command must be a mapping",
		"a: &a [x]\nb: &b [*a,*a]\nc: &c [*b,*b]\nd: [*c]": "line 1",
		"{{{{":                     "not YAML",
		"rules: !!binary x":        "line 1: rules must be a mapping",
		"\xff\xfe\x00":             "not",
		strings.Repeat("[", 20000): "not YAML",
	} {
		_, err := Parse([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%.60q: %v, want %q", text, err, want)
		}
	}
}

// TestLoad expects no file that another user can change, and no wait for a file that is none.
func TestLoad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name string, mode os.FileMode, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if _, err := Load(write("good", 0o644, "rules: {starved: off}")); err != nil {
		t.Error(err)
	}
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	bad := map[string]string{
		write("group", 0o620, ""): "can be written", write("others", 0o602, ""): "can be written", pipe: "not a regular file", dir: "not a regular file",
		write("large", 0o600, strings.Repeat("#", maxFile+1)): "at most", filepath.Join(dir, "missing"): "no such file",
		write("wrong", 0o600, "\n\nx: 1"): "line 3",
	}
	if os.Geteuid() == 0 {
		theirs := write("theirs", 0o600, "")
		if err := os.Chown(theirs, 4711, -1); err != nil {
			t.Fatal(err)
		}
		bad[theirs] = "belongs to user id 4711"
	}
	for path, want := range bad {
		if _, err := Load(path); !errors.Is(err, ErrFile) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}
