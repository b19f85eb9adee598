package repository

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestCapabilities compares the capabilities of the unit for all servers with those of the DaemonSet, the manual and the AppArmor
// profile. It also expects that the profile has the directories of both units, and that the manual has what remains after a removal.
func TestCapabilities(t *testing.T) {
	t.Parallel()
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(top, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	words := func(text, pattern string) []string {
		t.Helper()
		m := regexp.MustCompile(pattern).FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("nothing matches %s", pattern)
		}
		return regexp.MustCompile(`[A-Z_]+`).FindAllString(strings.ReplaceAll(m[1], "CAP_", ""), -1)
	}
	unit, profile := read("systemd/pg_stat_backtrace-all.service"), read("packaging/apparmor/pg_stat_backtrace")
	all := words(unit, `(?m)^CapabilityBoundingSet=(.*)$`)
	for _, name := range all {
		if !strings.Contains(profile, "\n  capability "+strings.ToLower(name)+",\n") {
			t.Errorf("the AppArmor profile has no capability %s", name)
		}
	}
	root := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return name == "PERFMON" }) // not for every worker
	slices.Sort(root)
	for name, pattern := range map[string]string{
		"packaging/kubernetes/daemonset/daemonset.yaml": `add: (\[.*\])`, "doc/worker.md": `(?s)As root the program uses (.*?)\.\n`,
	} {
		if got := words(read(name), pattern); !slices.Equal(slices.Sorted(slices.Values(got)), root) {
			t.Errorf("%s has the capabilities %q, and the unit %q", name, got, root)
		}
	}
	_, removal, _ := strings.Cut(read("doc/install.md"), "\n## Remove\n")
	for _, m := range regexp.MustCompile(`(?m)^(State|Cache)Directory=([^/\n]*)`).FindAllStringSubmatch(unit+read("systemd/pg_stat_backtrace@.service"), -1) {
		path := map[string]string{"State": "/var/lib/", "Cache": "/var/cache/"}[m[1]] + m[2] + "/{,**} rwkl,"
		if !strings.Contains(profile, "\n  owner "+path+"\n") {
			t.Errorf("the AppArmor profile lacks: owner %s", path)
		}
		if m[1] == "State" && !strings.Contains(removal, "`/var/lib/"+m[2]+"`") {
			t.Errorf("doc/install.md, Remove, does not name /var/lib/%s", m[2])
		}
	}
}

// TestProfileAllowsFilesInTheDataDirectory looks for the files that package spool makes in the data directory. Without the lock, no
// worker starts.
func TestProfileAllowsFilesInTheDataDirectory(t *testing.T) {
	t.Parallel()
	profile := read(t, top+"/packaging/apparmor/pg_stat_backtrace")
	constant := func(file, name string) string {
		t.Helper()
		m := regexp.MustCompile(`(?m)\b` + name + ` += "(.*)"`).FindStringSubmatch(read(t, top+"/worker/serve/spool/"+file))
		if m == nil {
			t.Fatalf("%s has no constant %s", file, name)
		}
		return m[1]
	}
	link := constant("alias.go", "aliasDir") + "/" + constant("alias.go", "aliasLeaf")
	for _, rule := range []string{
		constant("pidfile.go", "pidName") + "* rwl", constant("lock.go", "lockName") + " rwk", link + "{,.tmp} rw",
	} {
		if line := "owner /var/lib/{postgresql,pgsql}/**/" + rule + ","; !strings.Contains(profile, "\n  "+line+"\n") {
			t.Errorf("the AppArmor profile lacks: %s", line)
		}
	}
}

// TestProfileAllowsPlacesToWrite looks for fixed places that the program writes, and for places that the unit and the manual propose.
func TestProfileAllowsPlacesToWrite(t *testing.T) {
	t.Parallel()
	first := func(file, pattern string) string {
		t.Helper()
		m := regexp.MustCompile(pattern).FindStringSubmatch(read(t, top+"/"+file))
		if m == nil {
			t.Fatalf("%s has nothing that matches %s", file, pattern)
		}
		return m[1]
	}
	core, unit := "worker/capture/corestream.go", "systemd/pg_stat_backtrace@.service"
	runtime := strings.ReplaceAll(first("doc/serving.md", `RuntimeDirectory=(\S+)`), "%i", "15-main")
	for _, path := range []string{
		first(core, `folder = "(.*)"`) + "/" + first(core, `CreateTemp\(folder, "(.*)"\)`) + "1234567890",
		"/tmp/" + strings.ReplaceAll(first("worker/naming/symbolize/debug.go", `CreateTemp\("", "(.*)"\)`), "*", "1234567890"),
		"/var/lib/" + first(unit, `(?m)^# +StateDirectory=(.+)$`) + "/15-main/lock",
		"/run/" + runtime + "/worker.sock",
	} {
		if !allowedToWrite(read(t, top+"/packaging/apparmor/pg_stat_backtrace"), path) {
			t.Errorf("the AppArmor profile does not let the program write %s", path)
		}
	}
}

// allowedToWrite reports whether a rule of an AppArmor profile lets the owner of a file write it. It knows the patterns *, ** and
// {a,b}.
func allowedToWrite(profile, path string) bool {
	words := strings.NewReplacer("{", "(?:", "}", ")", ",", "|", "**", ".*", "*", "[^/]*", ".", `\.`)
	for _, rule := range regexp.MustCompile(`(?m)^  owner (/\S+) r?w`).FindAllStringSubmatch(profile, -1) {
		if regexp.MustCompile("^" + words.Replace(rule[1]) + "$").MatchString(path) {
			return true
		}
	}
	return false
}
