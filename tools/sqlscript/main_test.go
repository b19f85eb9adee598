package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestScripts checks that the scripts in sql/ match their sources.
func TestScripts(t *testing.T) {
	t.Parallel()
	scripts, err := scripts("../../sql/src")
	if err != nil || len(scripts) != 4 {
		t.Fatalf("%d scripts: %v", len(scripts), err)
	}
	for name, want := range scripts {
		got, err := os.ReadFile(filepath.Join("../../sql", name))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("%s differs from its sources: run make sql", name)
		}
		if strings.Contains(want, "@include") || strings.Contains(want, "@keep@") {
			t.Errorf("%s has directives left", name)
		}
	}
}

func TestExpand(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"x.sql.in": "-- @generated@\n-- @include a.sql replace keep=on\nend\n",
		"a.sql": "CREATE FUNCTION f();\nCREATE TABLE t;\nbegin\n    -- @include b.sql\n" +
			"CREATE VIEW v; @keep@ @extschema@\n",
		"b.sql": "one\n\n  two\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := scripts(dir)
	want := notice + "\nCREATE OR REPLACE FUNCTION f();\nCREATE TABLE t;\nbegin\n    one\n\n      two\n" +
		"CREATE OR REPLACE VIEW v; on @extschema@\nend\n"
	if err != nil || got["x.sql"] != want {
		t.Errorf("got %q, %v, want %q", got["x.sql"], err, want)
	}
	if err := os.Remove(filepath.Join(dir, "b.sql")); err != nil {
		t.Fatal(err)
	}
	if _, err := scripts(dir); err == nil {
		t.Error("a file that is not there is no error")
	}
}
