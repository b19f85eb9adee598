package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/imagetest"
	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/naming/debuginfod"
)

// noServer is an URL at which nobody answers.
const noServer = "http://127.0.0.1:1"

func TestSymbolsExitStatus(t *testing.T) {
	t.Setenv(debuginfod.EnvURLs, "")
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no ELF file"), 0o600); err != nil {
		t.Fatal(err)
	}
	cache := t.TempDir()
	tests := []struct {
		args           []string
		status         int
		stdout, stderr string
	}{
		{[]string{"--help"}, 0, "--fetch", ""},
		{[]string{"/bin/sh"}, 0, "IMAGE", ""},
		{[]string{"--json", "/bin/sh"}, 0, `"build_id":`, ""},
		{[]string{"/nonexistent"}, 1, "", "/nonexistent: no such file"},
		{[]string{"nosuch"}, 1, "", "nosuch is neither a process id nor a file"},
		{[]string{"/nonexistent", "/bin/sh"}, 1, "IMAGE", "/nonexistent"},
		{[]string{text}, 1, "", text + ": text: not an ELF image"},
		{[]string{"/"}, 1, "", "not a regular file"},
		{[]string{"2147483647"}, 1, "", "there is no process 2147483647"},
		{[]string{"0"}, 2, "", "./0"},
		{[]string{"99999999999"}, 2, "", "not a process id"},
		{[]string{""}, 2, "", "empty"},
		{[]string{"--nonsense"}, 2, "", "symbols has no flag --nonsense"},
		{[]string{"-D", "/nonexistent"}, 1, "", "the directory /nonexistent does not exist"},
		{[]string{"-D", "/nonexistent", "1"}, 2, "", "give either -D, or process ids and files, not both"},
		{[]string{"--fetch", "/bin/sh"}, 2, "", "--fetch needs a debuginfod server"},
		{[]string{"--fetch", "--debuginfod", "off", "/bin/sh"}, 2, "", "--fetch needs"},
		{[]string{"--debuginfod", "ftp://host", "/bin/sh"}, 2, "", "not an http or https URL"},
		{[]string{"--debuginfod", noServer, "--debuginfod-max-size", "1XB", "/bin/sh"}, 2, "", "--debuginfod-max-size"},
		{[]string{"--debuginfod", noServer, "--debuginfod-cache", "relative", "/bin/sh"}, 1, "", "not an absolute path"},
		{
			[]string{"--fetch", "--debuginfod", noServer, "--debuginfod-cache", cache, "/bin/sh"}, 1,
			"IMAGE", "connection refused",
		},
	}
	for _, tt := range tests {
		status, stdout, stderr := run(t, append([]string{"symbols"}, tt.args...)...)
		if status != tt.status || !strings.Contains(stdout, tt.stdout) || !strings.Contains(stderr, tt.stderr) ||
			tt.stderr == "" && stderr != "" {
			t.Errorf("%q: status %d, want %d\n%s%s", tt.args, status, tt.status, stdout, stderr)
		}
	}
}

// TestSymbolsAgain: the command that is to be run again looks at the same, and a shell takes it as it is meant.
func TestSymbolsAgain(t *testing.T) {
	for _, tt := range []struct {
		dataDir string
		dirs    []string
		s       subject
		want    string
	}{
		{"", nil, subject{pid: 4711}, "4711"},
		{"/var/lib/postgresql/15/main", nil, subject{pid: 4711}, "-D /var/lib/postgresql/15/main"},
		{
			"/my data", []string{"/debug", "/my debug"}, subject{pid: 4711},
			"-D '/my data' --debug-dir /debug --debug-dir '/my debug'",
		},
		{"", nil, subject{file: "./lib$x.so"}, "'./lib$x.so'"},
		{"", nil, subject{file: "it's\x1b"}, `'it'\''s?'`},
	} {
		f := symbolsFlags{dataDir: tt.dataDir, dirs: tt.dirs}
		if got := f.again(tt.s); got != "pg_stat_backtrace symbols "+tt.want {
			t.Errorf("got %s, want %s", got, tt.want)
		}
	}
}

// TestSymbolsAdvice runs the command that symbols advises, which must know the debuginfod server that was given.
func TestSymbolsAdvice(t *testing.T) {
	t.Setenv(debuginfod.EnvURLs, "")
	p := imagetest.BuildSplit(t, "../naming/debuginfod/testdata/program.c")
	_, out, _ := run(t, "symbols", "--debuginfod", noServer, "--debuginfod-cache", t.TempDir(),
		"--debuginfod-min-free", "0", p.Exe)
	_, advice, found := strings.Cut(out, "pg_stat_backtrace symbols ")
	if !found {
		t.Fatalf("no advice: %q", out)
	}
	advice, _, _ = strings.Cut(advice, "\n")
	status, _, stderr := run(t, append([]string{"symbols"}, strings.Fields(advice)...)...)
	if status != 1 || !strings.Contains(stderr, "connection refused") { // it has asked the server
		t.Errorf("%s: status %d, %q", advice, status, stderr)
	}
}

// TestFetch gets a debug file from a real server, as lines, and not again; what no server has is no failure.
func TestFetch(t *testing.T) {
	p := imagetest.BuildSplit(t, "../naming/debuginfod/testdata/program.c")
	server := imagetest.StartDebuginfod(t, filepath.Dir(p.Debug), p.BuildID)
	t.Setenv(debuginfod.EnvURLs, server.URL)
	t.Setenv(debuginfod.EnvCache, filepath.Join(t.TempDir(), "cache"))
	status, before, stderr := run(t, "symbols", p.Exe)
	if status != 0 || !strings.Contains(before, "of no package") || stderr != "" {
		t.Fatalf("status %d\n%s%s", status, before, stderr)
	}
	status, after, stderr := run(t, "symbols", "--fetch", p.Exe)
	if status != 0 || !strings.Contains(after, "yes  "+p.BuildID+"  debuginfod") || strings.Contains(after, "To get") ||
		!strings.Contains(stderr, "program                  fetched ") || strings.ContainsAny(stderr, "\r\x1b") {
		t.Errorf("status %d\n%s%s", status, after, stderr)
	}
	requests := server.Requests(t, "/buildid/"+p.BuildID+"/debuginfo")
	status, again, stderr := run(t, "symbols", "--fetch", "--json", p.Exe)
	var report symbolsReport
	err := json.Unmarshal([]byte(again), &report)
	if err != nil || status != 0 || stderr != "" || len(report.Images) != 1 ||
		report.Images[0].FetchedFile != filepath.Join(os.Getenv(debuginfod.EnvCache), p.BuildID, "debuginfo") {
		t.Errorf("status %d, %v\n%s%s", status, err, again, stderr)
	}
	if n := server.Requests(t, "/buildid/"+p.BuildID+"/debuginfo"); n != requests {
		t.Errorf("asked again for a file that is there")
	}
	other := imagetest.BuildSplit(t, "../naming/debuginfod/testdata/program.c", "-O2")
	status, _, stderr = run(t, "symbols", "--fetch", other.Exe)
	if status != 0 || !strings.Contains(stderr, "no server has") {
		t.Errorf("status %d, %s", status, stderr)
	}
}

// TestSymbolsOfServer looks at a postmaster by its data directory.
func TestSymbolsOfServer(t *testing.T) {
	t.Setenv(debuginfod.EnvURLs, "")
	server := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	status, out, stderr := run(t, "symbols", "-D", server.DataDir)
	if status != 0 || !strings.HasPrefix(out, fmt.Sprintf("process %d\n", server.PostmasterPID())) ||
		!strings.Contains(out, "\npostgres ") || !strings.Contains(out, "\nlibc.so.6 ") {
		t.Errorf("status %d\n%s%s", status, out, stderr)
	}
}

// TestCaptureWithDebuginfod: a capture does not wait for a server that is silent, and says what it has not waited for.
func TestCaptureWithDebuginfod(t *testing.T) {
	release := make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	defer silent.Close()
	defer close(release)
	status, out, stderr := run(t, "capture", "--debuginfod", silent.URL, "--debuginfod-cache", t.TempDir(), sleeper(t))
	if status != 0 || !strings.Contains(out, "#0 ") || !strings.Contains(stderr, "still being fetched") {
		t.Errorf("status %d\n%s%s", status, out, stderr)
	}
}
