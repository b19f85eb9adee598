package pgtest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

const envTemplates = "PGSB_TEST_TEMPLATES"

// templates is a directory of data directories that initdb has made and no server has used. A copy takes a tenth of the
// processor time of initdb. All copies have the same system identifier.
var templates struct {
	sync.Mutex

	dir  string
	keep func() // what holds the watchdog's pipe open
}

// copyTemplate makes the data directory to from the template that initdb makes with these arguments.
func copyTemplate(t testing.TB, a account, binDir, to string, arguments []string) {
	t.Helper()
	templates.Lock()
	defer templates.Unlock()
	if templates.dir == "" {
		templates.dir = templateDir(t, a, binDir)
	}
	key := sha256.Sum256([]byte(binDir + "\x00" + strings.Join(arguments, "\x00")))
	template := filepath.Join(templates.dir, hex.EncodeToString(key[:8]))
	lock, err := os.OpenFile(template+".lock", os.O_CREATE|os.O_RDWR, 0o600) // other test programs share the directory
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(template); err != nil {
		unfinished := template + ".new"
		run(t, a, "rm", "-rf", unfinished)
		run(t, a, filepath.Join(binDir, "initdb"), append([]string{"-D", unfinished}, arguments...)...)
		run(t, a, "mv", unfinished, template)
	}
	run(t, a, "cp", "-a", template, to)
}

// templateDir returns the directory that the environment names. Without one it makes a directory for this test
// program, which a watchdog removes when the program has ended.
func templateDir(t testing.TB, a account, binDir string) string {
	t.Helper()
	var err error
	dir := os.Getenv(envTemplates)
	if dir != "" {
		err = os.MkdirAll(dir, 0o755)
	} else if dir, err = os.MkdirTemp("", "pgtest"); err == nil { //nolint:usetesting // other tests use it too
		templates.keep = watchdog(t, a, binDir, filepath.Join(dir, "none"), dir)
	}
	if err == nil {
		err = os.Chown(dir, a.uid, a.gid)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func run(t testing.TB, a account, program string, arguments ...string) {
	t.Helper()
	var out bytes.Buffer
	command := a.apply(exec.CommandContext(t.Context(), program, arguments...))
	command.Stdout, command.Stderr = &out, &out
	if err := command.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", program, err, out.String())
	}
}
