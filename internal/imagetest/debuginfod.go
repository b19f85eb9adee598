package imagetest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
)

// timeout is the time limit of each wait for debuginfod.
const timeout = 30 * time.Second

// Debuginfod is a running debuginfod server.
type Debuginfod struct {
	// URL is the value for DEBUGINFOD_URLS.
	URL string
	log string
}

// StartDebuginfod starts a debuginfod server for the ELF files below folder. It returns when the server serves the
// debug files whose build-ids are in ids. The server ends with the test. StartDebuginfod skips the test if the program
// debuginfod is not installed.
func StartDebuginfod(t testing.TB, folder string, ids ...string) *Debuginfod {
	t.Helper()
	exe, err := exec.LookPath("debuginfod")
	if err != nil {
		t.Skipf("no debuginfod: %v (Debian: apt-get install debuginfod)", err)
	}
	dir := t.TempDir()
	port := pgtest.FreePort(t)
	s := &Debuginfod{URL: fmt.Sprintf("http://127.0.0.1:%d", port), log: filepath.Join(dir, "log")}
	log, err := os.Create(s.log)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "-p", strconv.Itoa(port), "-d", ":memory:", "-t", "1", "-F", folder, "-v")
	cmd.Env = append(os.Environ(), "HOME="+dir, "TMPDIR="+dir, "DEBUGINFOD_URLS=")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = log.Close()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			log := s.Log(t)
			t.Logf("debuginfod:\n%s", log[max(0, len(log)-4096):])
		}
	})
	for _, id := range ids {
		s.await(t, id)
	}
	return s
}

// await waits until the server has found the debug file of a build.
func (s *Debuginfod) await(t testing.TB, id string) {
	t.Helper()
	for deadline := time.Now().Add(timeout); ; time.Sleep(20 * time.Millisecond) {
		if s.has(t.Context(), id) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("debuginfod does not find build %s:\n%s", id, s.Log(t))
		}
	}
}

func (s *Debuginfod) has(ctx context.Context, id string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/buildid/"+id+"/debuginfo", nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// Log returns the server's log so far.
func (s *Debuginfod) Log(t testing.TB) string {
	t.Helper()
	data, err := os.ReadFile(s.log)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// Requests returns the number of requests for a path in the server's log. It includes the requests that StartDebuginfod has made
// while it waited for the server.
func (s *Debuginfod) Requests(t testing.TB, path string) int {
	t.Helper()
	return strings.Count(s.Log(t), "GET "+path+" ")
}
