package stackoracle

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// program is our own program, built from the source that is tested.
var program string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "stackoracle")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if program = os.Getenv("STACKORACLE_PROGRAM"); program != "" {
		return m.Run()
	}
	program = filepath.Join(dir, "pg_stat_backtrace")
	build := exec.CommandContext(context.Background(), "go", "build", "-o", program, "pg_stat_backtrace")
	if out, err := build.CombinedOutput(); err != nil {
		const most = 2000
		fmt.Fprintf(os.Stderr, "building the program: %v\n%s\n", err, out[:min(most, len(out))])
		return 1
	}
	return m.Run()
}

// randomStops is how often a busy process is stopped.
func randomStops(t *testing.T) int {
	t.Helper()
	text := os.Getenv("STACKORACLE_RANDOM")
	switch {
	case text == "" && testing.Short():
		return 3
	case text == "":
		return 10
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
	deadline := time.Now().Add(time.Minute)
	for pause := time.Millisecond; !condition(); pause = min(2*pause, 20*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
		time.Sleep(pause)
	}
}
