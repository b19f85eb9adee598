package worker

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// unitSetting returns all words of a setting in the systemd unit, which may have the setting several times.
func unitSetting(t *testing.T, name string) []string {
	t.Helper()
	text, err := os.ReadFile("../systemd/pg_stat_backtrace@.service")
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+"="); ok {
			words = append(words, strings.Fields(value)...)
		}
	}
	if len(words) == 0 {
		t.Fatalf("the unit has no %s", name)
	}
	return words
}

// TestUnitAllowsWhatTheWorkerNeeds has the system calls that a worker needs but that @system-service of systemd 252
// lacks.
func TestUnitAllowsWhatTheWorkerNeeds(t *testing.T) {
	allowed := unitSetting(t, "SystemCallFilter")
	for _, call := range []string{"ptrace", "process_vm_readv", "perf_event_open", "seccomp"} {
		if !slices.Contains(allowed, call) {
			t.Errorf("the unit's filter refuses %s", call)
		}
	}
}

// The worker opens a port only if a drop-in allows it.
func TestUnitOpensNoPort(t *testing.T) {
	if denied := unitSetting(t, "SocketBindDeny"); !slices.Contains(denied, "any") {
		t.Errorf("the unit allows ports: SocketBindDeny=%v", denied)
	}
}

// A drop-in adds its own path to the unit's, and systemd starts nothing if one of them is missing and has no dash.
func TestUnitStartsWithAnotherDataDirectory(t *testing.T) {
	for _, path := range unitSetting(t, "ReadWritePaths") {
		if !strings.HasPrefix(path, "-") {
			t.Errorf("systemd refuses to start the worker where there is no %s", path)
		}
	}
}

// The history has query texts of all users, so its directory is for the worker's user only.
func TestUnitKeepsTheHistoryPrivate(t *testing.T) {
	if mode := unitSetting(t, "StateDirectoryMode"); !slices.Equal(mode, []string{"0700"}) {
		t.Errorf("StateDirectoryMode=%v", mode)
	}
	if dirs := unitSetting(t, "StateDirectory"); len(dirs) != 1 {
		t.Errorf("StateDirectory=%v", dirs)
	}
}
