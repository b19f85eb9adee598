package rootfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
)

const (
	stranger = 47110 // a user id that owns nothing
	theGroup = 47111
	another  = 47112
)

// folder makes a folder that every user can reach.
func folder(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can take on the ids of other users")
	}
	dir, err := os.MkdirTemp("/tmp", "rootfs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// put makes a file with an owner, a group and a mode.
func put(t *testing.T, path, text string, uid, gid int, mode os.FileMode) {
	t.Helper()
	err := os.WriteFile(path, []byte(text), 0o600)
	if err = errors.Join(err, os.Chown(path, uid, gid), os.Chmod(path, mode)); err != nil {
		t.Fatal(err)
	}
}

// processOf starts a process of a user, which works in the folder.
func processOf(t *testing.T, dir string, credential *syscall.Credential) int {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/bin/cat")
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential, Pdeathsig: syscall.SIGKILL}
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

// TestRightsOfProcess: root opens below the root and the working directory of a process what the process's user could
// open, with all of its groups, and nothing else.
func TestRightsOfProcess(t *testing.T) {
	dir := folder(t)
	put(t, dir+"/open", "x", 0, 0, 0o644)
	put(t, dir+"/root's", "x", 0, 0, 0o600)
	put(t, dir+"/own", "x", stranger, 0, 0o400)
	put(t, dir+"/group's", "x", 0, theGroup, 0o040)
	put(t, dir+"/other group's", "x", 0, another, 0o040)
	if err := os.Mkdir(dir+"/closed", 0o700); err != nil {
		t.Fatal(err)
	}
	put(t, dir+"/closed/open", "x", 0, 0, 0o644)
	if err := os.Symlink(dir+"/closed/open", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir+"/root's", dir+"/secret"); err != nil {
		t.Fatal(err)
	}
	pid := processOf(t, dir, &syscall.Credential{Uid: stranger, Gid: stranger, Groups: []uint32{theGroup}})
	for name, readable := range map[string]bool{
		"open": true, "own": true, "group's": true, "root's": false, "other group's": false, "closed/open": false,
		"link": false, "secret": false,
	} {
		for _, path := range []string{fmt.Sprintf("/proc/%d/root%s/%s", pid, dir, name),
			fmt.Sprintf("/proc/%d/task/%d/root%s/%s", pid, pid, dir, name), fmt.Sprintf("/proc/%d/cwd/%s", pid, name)} {
			f, err := Open(path)
			if err == nil {
				_ = f.Close()
			}
			if (err == nil) != readable || err != nil && !errors.Is(err, fs.ErrPermission) {
				t.Errorf("%s: %v", path, err)
			}
		}
		_, err := Stat(fmt.Sprintf("/proc/%d/root%s/%s", pid, dir, name))
		if reachable := name != "closed/open" && name != "link"; (err == nil) != reachable {
			t.Errorf("description of %s: %v", name, err)
		}
	}
	if f, err := Open(fmt.Sprintf("/proc/%d/exe", pid)); err != nil {
		t.Error(err)
	} else {
		_ = f.Close()
	}
}

// TestRightsOfOwner: the files of a data directory are read as the owner of the directory.
func TestRightsOfOwner(t *testing.T) {
	dir := folder(t)
	shared := filepath.Join(dir, "shared")
	data := filepath.Join(dir, "data")
	if err := errors.Join(os.Mkdir(data, 0o700), os.Mkdir(shared, 0o700), os.Chmod(shared, 0o777|os.ModeSticky)); err != nil {
		t.Fatal(err)
	}
	put(t, data+"/own", "text", stranger, stranger, 0o600)
	put(t, data+"/root's", "text", 0, 0, 0o600)
	if err := os.Chown(data, stranger, 0); err != nil { // a directory can inherit a group that its owner is not in
		t.Fatal(err)
	}
	put(t, data+"/group's", "text", 0, 0, 0o640)
	put(t, shared+"/root's", "text", 0, 0, 0o600)
	put(t, dir+"/root's", "text", 0, 0, 0o600)
	for path, readable := range map[string]bool{
		data + "/own": true, data + "/root's": false, data + "/group's": false, shared + "/root's": false,
		dir + "/root's": true,
	} {
		text, err := ReadIn(filepath.Dir(path), filepath.Base(path), 10)
		if (err == nil) != readable || readable != (string(text) == "text") {
			t.Errorf("%s: %q, %v", path, text, err)
		}
	}
	if _, err := ReadIn(data, "own", 3); err == nil || strings.Contains(err.Error(), "text") {
		t.Errorf("a file of four bytes: %v", err)
	}
}

// TestKinds: nothing but a regular file is opened, and the error comes at once. The kernel reports an open with other
// flags than O_PATH by inotify(7).
func TestKinds(t *testing.T) {
	dir := folder(t)
	device := int(unix.Mkdev(1, 5)) // zero: it can be read without end
	err := errors.Join(unix.Mknod(dir+"/device", unix.S_IFCHR|0o666, device), unix.Mkfifo(dir+"/pipe", 0o666),
		os.Mkdir(dir+"/folder", 0o755), os.Symlink("device", dir+"/link"), os.Chmod(dir+"/pipe", 0o666))
	if err != nil {
		t.Skip(err)
	}
	opened := watch(t, dir)
	pid := processOf(t, dir, &syscall.Credential{Uid: stranger, Gid: stranger})
	for _, name := range []string{"device", "pipe", "folder", "link"} {
		for _, path := range []string{filepath.Join(dir, name), fmt.Sprintf("/proc/%d/root%s/%s", pid, dir, name)} {
			for how, open := range map[string]func() error{
				"open":    func() error { return closing(Open(path)) },
				"as user": func() error { return closing(IDs(stranger, stranger).Open(path)) },
				"below":   func() error { return closing(IDs(stranger, stranger).OpenBelow(filepath.Dir(path), name)) },
				"read":    func() error { _, err := ReadFile(path, 10); return err },
				"read in": func() error { _, err := ReadIn(filepath.Dir(path), name, 10); return err },
			} {
				if err := open(); !errors.Is(err, ErrNotRegular) {
					t.Errorf("%s %s: %v", how, path, err)
				}
			}
		}
	}
	if names := opened(); len(names) > 0 {
		t.Errorf("opened: %q", names)
	}
	if err := closing(os.OpenFile(dir+"/pipe", os.O_RDONLY|unix.O_NONBLOCK, 0)); err != nil {
		t.Fatal(err)
	}
	if names := opened(); !slices.Equal(names, []string{"pipe"}) {
		t.Errorf("the test does not notice an open: %q", names)
	}
}

// TestFilesOfKernel: a link of another user leads to no file of /proc or /sys. With CAP_SYS_PTRACE, which root keeps with
// the user's ids, the kernel shows files of /proc that it does not show to that user.
func TestFilesOfKernel(t *testing.T) {
	dir := folder(t)
	pid := processOf(t, dir, &syscall.Credential{Uid: stranger, Gid: stranger})
	for name, target := range map[string]string{
		"maps": "/proc/1/maps", "version": "/proc/version", "sys": "/sys/kernel/mm/transparent_hugepage/enabled",
	} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(target); err != nil {
			continue // not on this kernel
		}
		for how, open := range map[string]func() error{
			"below a root": func() error { return closing(Open(fmt.Sprintf("/proc/%d/root%s/%s", pid, dir, name))) },
			"in a folder":  func() error { return closing(Open(fmt.Sprintf("/proc/%d/cwd/%s", pid, name))) },
			"as user":      func() error { return closing(IDs(stranger, stranger).Open(filepath.Join(dir, name))) },
			"below":        func() error { return closing(IDs(stranger, stranger).OpenBelow(dir, name)) },
		} {
			if err := open(); !errors.Is(err, ErrNotRegular) {
				t.Errorf("%s: %s: %v", how, target, err)
			}
		}
		if err := closing(Open(filepath.Join(dir, name))); errors.Is(err, ErrNotRegular) {
			t.Errorf("%s, which an administrator names: %v", target, err)
		}
	}
}

// watch returns a function that returns the names of the files in a folder that were opened since its last call.
func watch(t *testing.T, dir string) func() []string {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err == nil {
		_, err = unix.InotifyAddWatch(fd, dir, unix.IN_OPEN)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return func() (names []string) {
		buffer := make([]byte, 64<<10)
		n, err := unix.Read(fd, buffer)
		if err != nil && !errors.Is(err, unix.EAGAIN) {
			t.Fatal(err)
		}
		for rest := buffer[:max(n, 0)]; len(rest) >= unix.SizeofInotifyEvent; {
			length := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(rest[12:]))
			if name := strings.TrimRight(string(rest[unix.SizeofInotifyEvent:length]), "\x00"); name != "" {
				names = append(names, name)
			}
			rest = rest[length:]
		}
		return names
	}
}

func closing(f *os.File, err error) error {
	if err == nil {
		err = f.Close()
	}
	return err
}

// TestOpenSame: another file than the expected one is not opened.
func TestOpenSame(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	for _, offset := range []uint64{0, 1} {
		err := closing(OpenSame(path, func(device, inode uint64) bool {
			return device == st.Dev && inode == st.Ino+offset
		}))
		if (err == nil) != (offset == 0) {
			t.Error(offset, err)
		}
	}
}

// TestCallerOfSetID: the caller of a program that has changed its ids chose its files.
func TestCallerOfSetID(t *testing.T) {
	for _, test := range []struct{ uid, gid, wantUID, wantGID int }{
		{0x1001, 0x1001, 1, 1}, // real ids in the low digits, effective ones in the high digit
		{0x0001, 0x0001, 1, 1},
		{0x1000, 0x2000, 1, 2},
		{0x2001, 0x2001, 1, 1},
	} {
		u := OfStatus(process.Status{
			UID: [4]int{test.uid & 0xf, test.uid >> 12}, GID: [4]int{test.gid & 0xf, test.gid >> 12},
		})
		if !u.set || u.uid != test.wantUID || u.gid != test.wantGID {
			t.Errorf("%x: %+v", test.uid, u)
		}
	}
	if u := OfStatus(process.Status{}); u.set {
		t.Errorf("root: %+v", u)
	}
}

// TestUserOfFile: a file names other files with the rights of its owner, not with the rights of the process of root below whose root
// directory it is.
func TestUserOfFile(t *testing.T) {
	dir := folder(t)
	put(t, dir+"/own", "x", another, 0, 0o644)
	put(t, dir+"/root's", "x", 0, 0, 0o644)
	pid := processOf(t, dir, &syscall.Credential{Uid: stranger, Gid: stranger})
	theirs := fmt.Sprintf("/proc/%d/root", pid)
	for path, want := range map[string]User{
		dir + "/own": OfUser(another), dir + "/root's": {}, "/proc/self/root" + dir + "/own": OfUser(another),
		fmt.Sprintf("/proc/%d/root%s/own", os.Getpid(), dir):    OfUser(another),
		fmt.Sprintf("/proc/%d/root%s/root's", os.Getpid(), dir): {},
		theirs + dir + "/own": IDs(stranger, stranger), theirs + dir + "/root's": IDs(stranger, stranger),
	} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if u, err := OfFile(path, f); err != nil || u.set != want.set || u.uid != want.uid || u.gid != want.gid {
			t.Errorf("%s: %+v, %v, want %+v", path, u, err, want)
		}
		_ = f.Close()
	}
}

// TestThreadsKeepNoIDs: after an open with the ids of another user, no thread has them.
func TestThreadsKeepNoIDs(t *testing.T) {
	dir := folder(t)
	put(t, dir+"/own", "x", stranger, 0, 0o400)
	u := User{uid: stranger, gid: theGroup, groups: []int{theGroup, another}, set: true}
	own, err := process.ReadStatus(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	const callers = 8
	for range callers {
		go func() {
			var failed error
			for range 50 {
				failed = errors.Join(failed, closing(u.Open(dir+"/own")), u.Do(func() error {
					status, err := process.ReadTaskStatus(os.Getpid(), unix.Gettid())
					if err == nil && (status.UID[3] != stranger || status.GID[3] != theGroup ||
						!slices.Equal(status.Groups, u.groups)) {
						err = fmt.Errorf("%+v", status)
					}
					return err
				}))
			}
			done <- failed
		}()
	}
	for range callers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	// The last goroutines may be giving their ids back.
	deadline := time.Now().Add(3 * time.Minute)
	for foreign(t, own) {
		if time.Now().After(deadline) {
			t.Fatal("a thread has kept the ids")
		}
		runtime.Gosched()
	}
}

// foreign reports whether a thread has other ids or capabilities.
func foreign(t *testing.T, own process.Status) bool {
	t.Helper()
	threads, err := process.Threads(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, tid := range threads {
		status, err := process.ReadTaskStatus(os.Getpid(), tid)
		if err == nil && (status.UID != own.UID || status.GID != own.GID || !slices.Equal(status.Groups, own.Groups) ||
			status.CapEff != own.CapEff) {
			return true
		}
	}
	return false
}

// TestWithoutIDs: root without the capabilities to take on ids opens what the user may read as owner, or as any user.
func TestWithoutIDs(t *testing.T) {
	dir := folder(t)
	put(t, dir+"/open", "x", 0, 0, 0o644)
	put(t, dir+"/root's", "x", 0, 0, 0o600)
	put(t, dir+"/group's", "x", 0, theGroup, 0o640)
	u := User{uid: stranger, gid: theGroup, set: true}
	results := make(chan map[string]error)
	go func() {
		runtime.LockOSThread() // and the thread ends with the goroutine
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&header, &none[0]); err != nil {
			t.Error(err)
		}
		found := map[string]error{}
		for _, name := range []string{"open", "root's", "group's"} {
			p := place{path: name, user: User{}, base: unix.AT_FDCWD, inside: filepath.Join(dir, name)}
			if err := u.takeOn(); !errors.Is(err, errIDs) {
				t.Error(err)
			}
			found[name] = closing(p.readable(0, u.mayRead(nil)))
		}
		results <- found
	}()
	for name, err := range <-results {
		if (err == nil) != (name == "open") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestNamesWithoutIDs: root without the capabilities to take on ids lists a directory behind a process of another user.
func TestNamesWithoutIDs(t *testing.T) {
	const variable = "PGSB_TEST_NAMES_OF"
	if dir := os.Getenv(variable); dir != "" {
		if err := OfUser(stranger).Do(func() error { return nil }); !errors.Is(err, errIDs) {
			t.Error(err)
		}
		if names, err := ReadNames(dir, 10); len(names) == 0 || err != nil {
			t.Error(names, err)
		}
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root, to start a process of another user")
	}
	sleeper := exec.Command("sleep", "1000")
	sleeper.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stranger, Gid: stranger}}
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = sleeper.Process.Kill(), sleeper.Wait() }()
	child := exec.Command("/proc/self/exe", "-test.run=^TestNamesWithoutIDs$")
	child.Env = append(os.Environ(), fmt.Sprintf("%s=/proc/%d/root/etc", variable, sleeper.Process.Pid))
	ended := make(chan error)
	go func() {
		runtime.LockOSThread() // and the thread ends with the goroutine
		err := errors.Join(unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SETUID, 0, 0, 0),
			unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SETGID, 0, 0, 0))
		out, failed := child.CombinedOutput()
		if failed != nil {
			err = fmt.Errorf("%w\n%s", failed, out)
		}
		ended <- err
	}()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestNames: the list of a directory is bounded.
func TestNames(t *testing.T) {
	dir := t.TempDir()
	for i := range 5 {
		if err := os.WriteFile(fmt.Sprintf("%s/%d", dir, i), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for limit, want := range map[int]int{3: 3, 10: 5} {
		if names, err := ReadNames(dir, limit); len(names) != want || err != nil {
			t.Error(names, err)
		}
	}
	if names, err := ReadNames(t.TempDir(), 3); len(names) != 0 || err != nil {
		t.Error(names, err)
	}
	if _, err := ReadNames(dir+"/1", 3); err == nil {
		t.Error("a file has no names")
	}
}
