package pgtest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

const envTemplates = "PGSB_TEST_TEMPLATES"

// templates has a directory of templates: data directories that initdb has made and no server has used. A copy of a template
// takes a tenth of the processor time of initdb. All copies have the same system identifier. Next to each template are used copies
// that tests no longer need. To restore a used copy takes a tenth of the processor time of a new copy.
var templates struct {
	sync.Mutex

	dir  string
	keep func() // ends the watchdog of dir; kept so that the watchdog's pipe stays open
}

// copyTemplate makes a data directory at the path to. It is a copy of the template that initdb makes with these
// arguments. The result is the path of the template.
func copyTemplate(t testing.TB, a account, binDir, to string, arguments []string) (template string) {
	t.Helper()
	templates.Lock()
	defer templates.Unlock()
	if templates.dir == "" {
		templates.dir = templateDir(t, a, binDir)
	}
	key := sha256.Sum256([]byte(binDir + "\x00" + strings.Join(arguments, "\x00")))
	template = filepath.Join(templates.dir, hex.EncodeToString(key[:8]))
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
	if takeUsed(template, to) {
		err := restore(a, template, to)
		if err == nil {
			return template
		}
		t.Logf("a used data directory cannot be restored: %v", err)
		if err := os.RemoveAll(to); err != nil {
			t.Fatal(err)
		}
	}
	run(t, a, "cp", "-a", template, to)
	return template
}

// used is the suffix of the name of a directory with the used copies of a template.
const used = ".used"

// keepUsed keeps the data directory of a stopped server as a used copy of its template, so that copyTemplate can
// restore it.
func keepUsed(template, dataDir string) {
	if os.MkdirAll(template+used, 0o700) == nil {
		_ = os.Rename(dataDir, filepath.Join(template+used, filepath.Base(filepath.Dir(dataDir)))) // otherwise it is removed
	}
}

// takeUsed moves a used copy of a template to the path in the parameter to. It returns false if there is no such copy.
func takeUsed(template, to string) bool {
	copies, _ := os.ReadDir(template + used) // empty if the directory does not exist
	for _, c := range copies {
		if os.Rename(filepath.Join(template+used, c.Name()), to) == nil {
			return true // if Rename fails, another test program has taken the copy
		}
	}
	return false
}

// restore makes a used copy of a template equal to the template. A file that has the size and the modification time of the
// template's file has its content too, because all files of a template are older than all changes of copies.
func restore(a account, template, to string) error {
	err := filepath.WalkDir(to, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		of, err := os.Lstat(template + strings.TrimPrefix(path, to))
		if err == nil && of.Mode().Type() == e.Type() {
			return nil
		}
		if err := os.RemoveAll(path); err != nil || !e.IsDir() {
			return err
		}
		return fs.SkipDir
	})
	if err != nil {
		return err
	}
	return filepath.WalkDir(template, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		of, err := e.Info()
		if err != nil {
			return err
		}
		return restoreOne(a, path, to+strings.TrimPrefix(path, template), of)
	})
}

// restoreOne restores a file or a directory without its entries.
func restoreOne(a account, template, to string, of fs.FileInfo) error {
	have, err := os.Lstat(to)
	if err == nil && have.Mode() == of.Mode() && (of.IsDir() || have.Size() == of.Size() && have.ModTime().Equal(of.ModTime())) {
		return nil
	}
	switch {
	case of.IsDir():
		err = os.MkdirAll(to, 0o700)
	case of.Mode().IsRegular():
		err = overwrite(to, template)
	default:
		err = fmt.Errorf("%s is no file and no directory", template)
	}
	if err != nil {
		return err
	}
	return errors.Join(os.Chown(to, a.uid, a.gid), os.Chmod(to, of.Mode().Perm()), os.Chtimes(to, of.ModTime(), of.ModTime()))
}

// overwrite copies the content of the file at the path from into the file at the path to. It keeps the disk blocks of
// the file, because new blocks cost time.
func overwrite(to, from string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	return errors.Join(err, file.Truncate(int64(len(content))), file.Close())
}

// templateDir returns the directory of PGSB_TEST_TEMPLATES. Without this variable, it makes a directory for this test program. A
// watchdog removes that directory after the end of the program.
func templateDir(t testing.TB, a account, binDir string) string {
	t.Helper()
	var err error
	dir := os.Getenv(envTemplates)
	if dir != "" {
		err = os.MkdirAll(dir, 0o755)
	} else if dir, err = os.MkdirTemp("", "pgtest"); err == nil {
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
