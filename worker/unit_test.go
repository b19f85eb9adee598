package worker

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// unitSetting returns all words of a setting in the systemd unit of one server.
func unitSetting(t *testing.T, name string) []string {
	t.Helper()
	return settingOf(t, "../systemd/pg_stat_backtrace@.service", name)
}

// settingOf returns all words of a setting in a unit, which may have the setting several times.
func settingOf(t *testing.T, unit, name string) []string {
	t.Helper()
	text, err := os.ReadFile(unit)
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
		t.Fatalf("%s has no %s", unit, name)
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

// The worker ends at once while the data directory is missing, for example until its file system is mounted. With its default
// limit, systemd would stop starting it after some seconds.
func TestUnitsStartWorkersForEver(t *testing.T) {
	for _, unit := range []string{"pg_stat_backtrace@.service", "pg_stat_backtrace-all.service"} {
		if limit := settingOf(t, "../systemd/"+unit, "StartLimitIntervalSec"); !slices.Equal(limit, []string{"0"}) {
			t.Errorf("%s: StartLimitIntervalSec=%v", unit, limit)
		}
	}
}

// supervise-daemon of OpenRC before 0.62 counts all ends of the worker since its own start.
func TestOpenRCStartsTheWorkerForEver(t *testing.T) {
	if most := settingOf(t, "../packaging/nfpm/apk/pg_stat_backtrace.initd", "respawn_max"); !slices.Equal(most, []string{"0"}) {
		t.Errorf("respawn_max=%v", most)
	}
}

// The drop-in that a unit's head proposes must not keep the worker from starting either.
func TestDropInStartsWithoutTheDataDirectory(t *testing.T) {
	for _, file := range []string{"systemd/pg_stat_backtrace@.service", "packaging/nfpm/deb/unit.head", "packaging/nfpm/rpm/unit.head"} {
		for _, path := range settingOf(t, "../"+file, "#   ReadWritePaths") {
			if !strings.HasPrefix(path, "-") {
				t.Errorf("%s: the path %s has no dash", file, path)
			}
		}
	}
}

// Two users cannot share the directory of the history: systemd gives it, with all files, to the user of the unit that started last.
func TestDropInKeepsTheHistoryOfUsersApart(t *testing.T) {
	shared := unitSetting(t, "StateDirectory")
	for _, file := range []string{"systemd/pg_stat_backtrace@.service", "packaging/nfpm/deb/unit.head", "packaging/nfpm/rpm/unit.head"} {
		settingOf(t, "../"+file, "#   User")
		if own := settingOf(t, "../"+file, "#   StateDirectory"); slices.Equal(own, shared) {
			t.Errorf("%s: the directory of another user is %v too", file, own)
		}
		text, err := os.ReadFile("../" + file)
		if err != nil || !strings.Contains(string(text), "\n#   StateDirectory=\n") {
			t.Errorf("%s: the drop-in does not remove the shared directory (%v)", file, err)
		}
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
