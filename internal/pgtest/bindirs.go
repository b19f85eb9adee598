package pgtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const (
	envBinDirs    = "PGSB_TEST_BINDIRS"
	envServers    = "PGSB_TEST_SERVERS"
	envFull       = "PGSB_TEST_FULL"
	defaultGlob   = "/usr/lib/postgresql/*/bin"
	versionFields = `(\d+)(?:\.(\d+)|devel|beta\d+|rc\d+)`
)

var versionPattern = regexp.MustCompile(versionFields)

// BinDirs returns the directories of the PostgreSQL programs to test with, in the order of PGSB_TEST_BINDIRS or, without
// this variable, sorted by name. It fails the test if a directory in the variable has no server. It skips the test if there is
// no directory, or if PGSB_TEST_SERVERS is "none".
func BinDirs(t testing.TB) []string {
	t.Helper()
	if os.Getenv(envServers) == "none" {
		t.Skipf("%s=none leaves out tests with a PostgreSQL server", envServers)
	}
	if env := os.Getenv(envBinDirs); env != "" {
		dirs := slices.DeleteFunc(strings.Split(env, ":"), func(d string) bool { return d == "" })
		for _, d := range dirs {
			if !hasServer(d) {
				t.Fatalf("%s names %s, which has no initdb and postgres", envBinDirs, d)
			}
		}
		return dirs
	}
	found, err := filepath.Glob(defaultGlob)
	if err != nil {
		t.Fatal(err)
	}
	dirs := slices.DeleteFunc(found, func(d string) bool { return !hasServer(d) })
	if len(dirs) == 0 {
		t.Skipf("no PostgreSQL server in %s; set %s", defaultGlob, envBinDirs)
	}
	return dirs
}

// BinDir returns the last of BinDirs, for tests that need any one server.
func BinDir(t testing.TB) string {
	t.Helper()
	dirs := BinDirs(t)
	return dirs[len(dirs)-1]
}

// Each runs test once for every server of BinDirs, as a subtest named after the server's version.
func Each(t *testing.T, test func(t *testing.T, binDir string)) {
	t.Helper()
	for _, dir := range BinDirs(t) {
		t.Run(Version(t, dir), func(t *testing.T) { test(t, dir) })
	}
}

// One runs test in the form of Each, but only for the newest version of BinDirs. It is for long tests that do not depend on
// the version. If Full is true, One runs test for every server.
func One(t *testing.T, test func(t *testing.T, binDir string)) {
	t.Helper()
	if Full() {
		Each(t, test)
		return
	}
	newest := Newest(t)
	t.Run(Version(t, newest), func(t *testing.T) { test(t, newest) })
}

// Newest returns the directory of BinDirs with the highest major version.
func Newest(t testing.TB) string {
	t.Helper()
	return slices.MaxFunc(BinDirs(t), func(a, b string) int { return Major(t, a) - Major(t, b) })
}

// Full reports whether PGSB_TEST_FULL is set. Tests then run to their full extent, which takes an hour or more for all
// tests. Otherwise long tests use fewer servers, samples or callers.
func Full() bool { return os.Getenv(envFull) != "" }

// Extent returns the number of rounds of a test: full if Full, usual otherwise.
func Extent(usual, full int) int {
	if Full() {
		return full
	}
	return usual
}

// versions caches the results of Version, by directory, because each test calls Version several times.
var versions sync.Map

// Version returns the version of the server in binDir as `postgres --version` prints it, like "15.18" or "19beta2".
func Version(t testing.TB, binDir string) string {
	t.Helper()
	if known, ok := versions.Load(binDir); ok {
		return fmt.Sprint(known)
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(binDir, "postgres"), "--version").Output()
	if err != nil {
		t.Fatalf("%s/postgres --version: %v", binDir, err)
	}
	version := versionPattern.FindString(string(out))
	if version == "" {
		t.Fatalf("%s/postgres --version printed %q", binDir, out)
	}
	versions.Store(binDir, version)
	return version
}

// Major returns the major version of the server in binDir, like 15.
func Major(t testing.TB, binDir string) int {
	t.Helper()
	major, err := strconv.Atoi(versionPattern.FindStringSubmatch(Version(t, binDir))[1])
	if err != nil {
		t.Fatal(err)
	}
	return major
}

func hasServer(dir string) bool {
	for _, program := range []string{"initdb", "postgres", "pg_ctl"} {
		if info, err := os.Stat(filepath.Join(dir, program)); err != nil || info.IsDir() {
			return false
		}
	}
	return true
}
