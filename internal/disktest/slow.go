package disktest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// SlowFile is a file system in user space (FUSE) with one file. Reads of the file block until Release is called.
type SlowFile struct {
	Path   string
	device int

	lock   sync.Mutex
	answer chan struct{} // open: reads block; closed: reads are answered
}

// SlowText is the content of a SlowFile.
const SlowText = "at last\n"

// Hold makes reads block again after a Release. A process that has the file open may still read the kernel's cached
// copy. Opening the file again discards this copy.
func (s *SlowFile) Hold() {
	s.lock.Lock()
	defer s.lock.Unlock()
	select {
	case <-s.answer:
		s.answer = make(chan struct{})
	default:
	}
}

// Release answers all reads, until Hold is called.
func (s *SlowFile) Release() {
	s.lock.Lock()
	defer s.lock.Unlock()
	select {
	case <-s.answer:
	default:
		close(s.answer)
	}
}

// Numbers of the operations that SlowFile handles, and sizes of messages (include/uapi/linux/fuse.h).
const (
	fuseLookup, fuseForget, fuseGetattr, fuseOpen, fuseRead, fuseInit = 1, 2, 3, 14, 15, 26
	fuseRelease, fuseFlush, fuseInterrupt, fuseBatchForget            = 18, 25, 36, 42

	fuseInHeader, fuseOutHeader, fuseAttr = 40, 16, 88
	fuseAsyncRead                         = 1 << 0
	fuseRootNode, fuseFileNode            = 1, 2
)

// MountSlow mounts a SlowFile at an empty directory until the test ends. It skips the test if FUSE or the mount is not
// available.
func MountSlow(t *testing.T, dir string) *SlowFile {
	t.Helper()
	device, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("no FUSE: %v", err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", device)
	if err := unix.Mount("slow", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		_ = unix.Close(device)
		t.Skipf("this root may not mount a file system in user space: %v", err)
	}
	s := &SlowFile{Path: filepath.Join(dir, "file"), device: device, answer: make(chan struct{})}
	served := make(chan struct{})
	go func() {
		defer close(served)
		s.serve()
	}()
	t.Cleanup(func() {
		_ = unix.Unmount(dir, unix.MNT_FORCE) // ends requests that wait
		_ = unix.Unmount(dir, unix.MNT_DETACH)
		<-served
		_ = unix.Close(device)
	})
	return s
}

// serve answers the kernel until the file system is unmounted.
func (s *SlowFile) serve() {
	for {
		request := make([]byte, 1<<18)
		n, err := unix.Read(s.device, request)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOENT):
			continue
		case err != nil || n < fuseInHeader:
			return
		}
		s.handle(request[:n])
	}
}

func (s *SlowFile) handle(request []byte) {
	operation, unique := binary.NativeEndian.Uint32(request[4:]), binary.NativeEndian.Uint64(request[8:])
	node := binary.NativeEndian.Uint64(request[16:])
	switch operation {
	case fuseForget, fuseBatchForget, fuseInterrupt:
	case fuseInit:
		out := make([]byte, 64)
		copy(out, request[fuseInHeader:fuseInHeader+8]) // the version of the protocol that the kernel has sent
		binary.NativeEndian.PutUint32(out[12:], fuseAsyncRead)
		binary.NativeEndian.PutUint32(out[20:], 1<<16)
		s.reply(unique, 0, out)
	case fuseLookup:
		entry := make([]byte, 40, 40+fuseAttr)
		entry[0] = fuseFileNode
		s.reply(unique, 0, append(entry, attributes(fuseFileNode)...))
	case fuseGetattr:
		s.reply(unique, 0, append(make([]byte, 16), attributes(node)...))
	case fuseOpen:
		s.reply(unique, 0, make([]byte, 16))
	case fuseRead:
		s.lock.Lock()
		answer := s.answer
		s.lock.Unlock()
		go func() {
			<-answer
			s.reply(unique, 0, []byte(SlowText))
		}()
	case fuseRelease, fuseFlush:
		s.reply(unique, 0, nil)
	default:
		s.reply(unique, unix.ENOSYS, nil)
	}
}

// attributes returns the attributes of the root directory or of the file.
func attributes(node uint64) []byte {
	out := make([]byte, fuseAttr)
	binary.NativeEndian.PutUint64(out, node)
	mode, links := uint32(unix.S_IFDIR|0o755), uint32(2)
	if node != fuseRootNode {
		mode, links = unix.S_IFREG|0o644, 1
		binary.NativeEndian.PutUint64(out[8:], uint64(len(SlowText)))
	}
	binary.NativeEndian.PutUint32(out[60:], mode)
	binary.NativeEndian.PutUint32(out[64:], links)
	binary.NativeEndian.PutUint32(out[80:], uint32(os.Getpagesize()))
	return out
}

// reply answers one request. After the unmount, it does nothing.
func (s *SlowFile) reply(unique uint64, errno unix.Errno, data []byte) {
	out := make([]byte, fuseOutHeader, fuseOutHeader+len(data))
	binary.NativeEndian.PutUint32(out, uint32(fuseOutHeader+len(data)))
	binary.NativeEndian.PutUint32(out[4:], uint32(-int32(errno)))
	binary.NativeEndian.PutUint64(out[8:], unique)
	_, _ = unix.Write(s.device, append(out, data...))
}
