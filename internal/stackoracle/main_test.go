package stackoracle

import (
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
)

// program is our own program, built from the source that is tested.
var program string

func TestMain(m *testing.M) {
	program = os.Getenv("STACKORACLE_PROGRAM")
	status := pgtest.RunWithProgram(m, &program)
	endGDB()
	os.Exit(status)
}

// randomStops is how often a busy process is stopped.
func randomStops(t *testing.T) int {
	t.Helper()
	text := os.Getenv("STACKORACLE_RANDOM")
	switch {
	case text == "" && pgtest.Full():
		return 10
	case text == "":
		return 1
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("STACKORACLE_RANDOM is %q", text)
	}
	return n
}

// need skips the test, with the reason, where a program is missing.
func need(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("%s is not installed", p)
		}
	}
}

// wait calls condition until it holds.
func wait(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(toolTimeout)
	for pause := time.Millisecond; !condition(); pause = min(2*pause, 20*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
		time.Sleep(pause)
	}
}
