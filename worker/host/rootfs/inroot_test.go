package rootfs

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/disktest"
)

const up = "../../../../../../../../../../../.."

// TestInRoot checks that files of a process in another root directory are those that the process itself would open.
// Links there, absolute or with any number of "..", must not lead outside.
func TestInRoot(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("outside"), 0o600); err != nil {
		t.Fatal(err)
	}
	pid := disktest.Jail(t, disktest.Tree{
		"/inside": "inside", "/etc/passwd": "its own",
		"/absolute": "-> /inside", "/relative": "-> etc/../inside", "/outside": "-> " + secret,
		"/passwd": "-> " + up + "/etc/passwd", "/folder": "-> " + up + "/etc", "/loop": "-> loop",
	})
	for _, test := range []struct{ path, want string }{
		{"inside", "inside"}, {"absolute", "inside"}, {"relative", "inside"}, {"passwd", "its own"},
		{"folder/passwd", "its own"}, {"etc/passwd", "its own"}, {"../.." + secret, ""}, {"outside", ""}, {"loop", ""},
		{"etc", ""}, {"nothing", ""},
	} {
		path := fmt.Sprintf("/proc/%d/root/%s", pid, test.path)
		for how, open := range map[string]func(string) (*os.File, error){
			"openat2": Open,
			"an old kernel": func(path string) (*os.File, error) {
				root, inside, _ := Split(path)
				return openOld(unix.AT_FDCWD, root, inside, readFlags)
			},
		} {
			f, err := open(path)
			var text []byte
			if err == nil {
				text, _ = io.ReadAll(f) // of a directory, nothing
				_ = f.Close()
			}
			got := string(text)
			// An old kernel finds less, but nothing else.
			if got != test.want && (how == "openat2" || got != "") {
				t.Errorf("%s by %s: %q, %v, want %q", test.path, how, got, err, test.want)
			}
		}
		info, err := Stat(path)
		if test.want != "" && (err != nil || info.Size() != int64(len(test.want))) {
			t.Errorf("%s: %v, %v", test.path, info, err)
		}
		text, _ := ReadFile(path, 100)
		if link, err := os.Lstat(path); err == nil && link.Mode()&os.ModeSymlink != 0 && text != nil {
			t.Errorf("%s was followed to %q", test.path, text)
		}
	}
	if text, err := ReadFile(fmt.Sprintf("/proc/%d/root/inside", pid), 5); err == nil {
		t.Errorf("six bytes are not more than five: %q", text)
	}
}

// TestDir checks that a directory is the other process's, even after links have changed.
func TestDir(t *testing.T) {
	outside := t.TempDir()
	pid := disktest.Jail(t, disktest.Tree{
		"/var/tmp/file": "inside", "/tmp": "-> /var/tmp", "/out": "-> " + outside, "/var/tmp/up": "-> ..",
		"/var/tmp/out": "-> " + outside, "/var/tmp/within/x": "y", "/var/tmp/same": "-> within",
	})
	root := fmt.Sprintf("/proc/%d/root", pid)
	d, err := OpenDir(root + "/tmp")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if text, err := os.ReadFile(d.Join("file")); string(text) != "inside" || d.Name() != root+"/tmp" {
		t.Errorf("%s: %q, %v", d.Name(), text, err)
	}
	if err := os.Rename(root+"/var/tmp", root+"/var/gone"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.Join("more"), nil, 0o600); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(root + "/var/gone/more"); err != nil {
		t.Error(err)
	}
	if _, err := OpenDir(root + "/out"); err == nil {
		t.Error("a link out of the root directory was followed")
	}
	for name, good := range map[string]bool{"within": true, "same": true, "up": false, "out": false, "file": false} {
		w, err := d.Within(name)
		if (err == nil) != good {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			if text, err := os.ReadFile(w.Join("x")); string(text) != "y" {
				t.Error(err)
			}
			_ = w.Close()
		}
	}
}

// TestDial checks that a socket of the other process is found by its absolute links, and that one of this host is
// not.
func TestDial(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "socket")
	host, err := net.Listen("unix", outside)
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	pid := disktest.Jail(t, disktest.Tree{
		"/run/socket": "listen", "/var/run": "-> /run", "/link": "-> /var/run/socket", "/out": "-> " + outside,
	})
	var dialer net.Dialer
	for path, good := range map[string]bool{"/run/socket": true, "/var/run/socket": true, "/link": true, "/out": false} {
		conn, err := Dial(context.Background(), "unix", fmt.Sprintf("/proc/%d/root%s", pid, path), dialer.DialContext)
		if (err == nil) != good {
			t.Errorf("%s: %v", path, err)
		}
		if err == nil {
			_ = conn.Close()
		}
	}
	if conn, err := Dial(context.Background(), "unix", outside, dialer.DialContext); err != nil {
		t.Error(err)
	} else {
		_ = conn.Close()
	}
}

func TestSplit(t *testing.T) {
	for path, want := range map[string][2]string{
		"/proc/12/root/usr/lib/x": {"/proc/12/root", "usr/lib/x"}, "/proc/12/root/": {}, "/proc/12/exe": {},
		"/proc/12/root": {}, "/proc/self/root/x": {}, "/proc//root/x": {}, "/usr/proc/12/root/x": {}, "": {},
	} {
		root, inside, ok := Split(path)
		if ok != (want != [2]string{}) || ok && [2]string{root, inside} != want {
			t.Errorf("%s: %q, %q, %v", path, root, inside, ok)
		}
	}
}
