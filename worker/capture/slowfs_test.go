package capture_test

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"path"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// slowFSVariable is the variable that makes a test program the file system's server, which then calls serveSlowFS. A
// program that reads from its own file system could wait for itself.
const slowFSVariable = "PGSB_TEST_SLOWFS"

// slowFS is a mounted file system. Its files can be found, but reads wait until the test allows them. It simulates a disk
// or a file server that does not answer.
type slowFS struct {
	// Dir is where it is mounted.
	Dir string

	server *exec.Cmd
	input  io.Closer
	once   sync.Once
}

// mountSlowFS mounts a file system that has the files of source, until the end of the test. It takes root and
// /dev/fuse.
func mountSlowFS(t testing.TB, source string) *slowFS {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a file system of its own takes root")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skipf("a file system of its own takes /dev/fuse: %v", err)
	}
	f := &slowFS{Dir: t.TempDir()}
	f.server = exec.Command("/proc/self/exe", f.Dir)
	f.server.Env = append(os.Environ(), slowFSVariable+"="+source)
	f.server.Stderr = os.Stderr
	f.server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	input, err := f.server.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	f.input = input
	output, err := f.server.StdoutPipe()
	var release func()
	if err == nil {
		release, err = startFromThread(f.server)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		defer release()
		f.Answer()
		if err := syscall.Unmount(f.Dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
		_ = f.server.Process.Kill() // files may still be open
		_ = f.server.Wait()
	})
	if line, err := bufio.NewReader(output).ReadString('\n'); err != nil {
		t.Fatalf("no file system in user space: %q, %v", line, err)
	}
	return f
}

// startFromThread starts a command from a thread that lives until release is called. The command gets its parent-death
// signal when that thread ends, and the threads of captures do end.
func startFromThread(cmd *exec.Cmd) (release func(), err error) {
	started, done := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		started <- cmd.Start()
		<-done
	}()
	release = func() { close(done) }
	if err := <-started; err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// Answer answers all reads from now on, including pending reads.
func (f *slowFS) Answer() { f.once.Do(func() { _ = f.input.Close() }) }

// serveSlowFS serves the files of source. Its first argument is the mount point. When its input ends, it answers the reads.
func serveSlowFS(source string) error {
	answers := make(chan struct{})
	go func() {
		defer close(answers)
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	options := &fs.Options{MountOptions: fuse.MountOptions{DirectMountStrict: true, FsName: "slowfs"}}
	server, err := fs.Mount(os.Args[len(os.Args)-1], &slowNode{answers: answers, source: source}, options)
	if err != nil {
		return err
	}
	_, _ = os.Stdout.WriteString("mounted\n")
	server.Wait()
	return nil
}

// slowNode is a directory or a file of the source.
type slowNode struct {
	fs.Inode

	answers <-chan struct{}
	source  string
}

func (n *slowNode) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	child := &slowNode{answers: n.answers, source: path.Join(n.source, name)}
	var st syscall.Stat_t
	if err := syscall.Lstat(child.source, &st); err != nil {
		return nil, fs.ToErrno(err)
	}
	out.FromStat(&st)
	return n.NewInode(ctx, child, fs.StableAttr{Mode: st.Mode & syscall.S_IFMT, Ino: st.Ino}), 0
}

func (n *slowNode) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	var st syscall.Stat_t
	if err := syscall.Lstat(n.source, &st); err != nil {
		return fs.ToErrno(err)
	}
	out.FromStat(&st)
	return 0
}

func (n *slowNode) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_DIRECT_IO, 0 // nothing is read ahead
}

func (n *slowNode) Read(ctx context.Context, _ fs.FileHandle, p []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	select {
	case <-n.answers:
	case <-ctx.Done(): // the waiting process was killed
		return nil, syscall.EINTR
	}
	f, err := os.Open(n.source)
	if err != nil {
		return nil, fs.ToErrno(err)
	}
	defer func() { _ = f.Close() }()
	k, _ := f.ReadAt(p, off)
	return fuse.ReadResultData(p[:k]), 0
}
