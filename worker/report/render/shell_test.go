package render_test

import (
	"testing"

	"pg_stat_backtrace/worker/report/render"
)

func TestShellWord(t *testing.T) {
	for word, want := range map[string]string{
		"/var/lib/postgresql/15/main": "/var/lib/postgresql/15/main",
		"/srv/my data":                "'/srv/my data'",
		"it's":                        `'it'\''s'`,
		"a\nb;rm":                     "'a?b;rm'",
	} {
		if got := render.ShellWord(word); got != want {
			t.Errorf("%q: %s, want %s", word, got, want)
		}
	}
}
