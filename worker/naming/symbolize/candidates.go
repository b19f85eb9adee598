package symbolize

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/worker/host/rootfs"
)

// Candidate is a path at which the file of a mapping may be.
type Candidate string

// candidates lists the paths at which the file of mapping m may be, beginning with the path that needs the fewest
// privileges. base is the mapping of the file's start. All paths start at the process's own root. For a process in a
// container or a chroot they lead to the container's files, not the host's.
func candidates(pid int, base, m *process.Mapping) []Candidate {
	if base.Deleted {
		return links(pid, base, m)
	}
	own := Candidate(ProcFolder(pid) + "/root" + insideRoot(pid, base.Path))
	return append([]Candidate{own}, links(pid, base, m)...)
}

// links lists the links in /proc that lead to the mapped file.
func links(pid int, base, m *process.Mapping) []Candidate {
	proc := ProcFolder(pid)
	var list []Candidate
	if exe, err := os.Readlink(proc + "/exe"); err == nil &&
		(exe == base.Path || exe == base.Path+" (deleted)") {
		list = append(list, Candidate(proc+"/exe"))
	}
	return append(list, Candidate(fmt.Sprintf("/proc/%d/map_files/%x-%x", pid, m.Start, m.End)))
}

// ProcFolder returns the folder in /proc with the links exe and root of a process. This is the process's folder, or a
// live thread's folder if the main thread has exited.
func ProcFolder(pid int) string {
	own := fmt.Sprintf("/proc/%d", pid)
	if _, err := os.Readlink(own + "/root"); err == nil {
		return own
	}
	if tid := process.LiveThread(pid); tid != pid {
		return fmt.Sprintf("%s/task/%d", own, tid)
	}
	return own
}

// insideRoot returns a path of the memory map as the process itself sees it. The memory map has paths as they are
// outside a chroot.
func insideRoot(pid int, path string) string {
	root, err := os.Readlink(ProcFolder(pid) + "/root")
	if err != nil || root == "/" {
		return path
	}
	if inside, ok := strings.CutPrefix(path, root+"/"); ok {
		return "/" + inside
	}
	return path
}

// rootOf returns the prefix with which this program reaches the path of an image of the process, and the files beside it.
// It is empty if the path leads to the same file for both.
func rootOf(pid int, path string) string {
	root := ProcFolder(pid) + "/root"
	if rootfs.SamePath(root, path) {
		return ""
	}
	return root
}

// openDebugFile opens a separate debug file. The folders for debug files belong to the administrator. Every other path
// comes from the image or from another debug file, so it is opened with the rights of m.User.
func (m *Module) openDebugFile(path string) (elfimage.File, error) {
	if slices.ContainsFunc(m.Sources.folders(), func(folder string) bool { return isBelow(path, folder) }) {
		return OpenOwn(path)
	}
	var f *os.File
	var err error
	if m.Root != "" && isBelow(path, m.Root) {
		f, err = m.User.OpenBelow(m.Root, strings.TrimPrefix(path, filepath.Clean(m.Root)))
	} else {
		f, err = m.User.Open(path)
	}
	if err != nil {
		return nil, err // not f: an interface that contains a nil *os.File is not nil
	}
	return f, nil
}

// isBelow reports whether a path is in a folder, by its text. For a path with "..", and for the folder /, it returns
// false.
func isBelow(path, folder string) bool {
	return filepath.Clean(path) == path && strings.HasPrefix(path, filepath.Clean(folder)+"/")
}

// OpenOwn opens a debug file of this process, such as a downloaded one.
func OpenOwn(path string) (elfimage.File, error) {
	f, _, err := Candidate(path).File()
	if err != nil {
		return nil, err
	}
	return f, nil
}

// FileID identifies an open file and its version.
type FileID struct {
	dev, ino uint64
	mtime    syscall.Timespec
	UID      int       // user id of the owner
	changed  time.Time // the inode's change time: never earlier than its creation
}

// File opens the candidate, see rootfs.Open. The path comes from another process's maps, and another file may be there
// now.
func (c Candidate) File() (*os.File, FileID, error) {
	f, err := rootfs.Open(string(c))
	if err != nil {
		return nil, FileID{}, err
	}
	return identified(f)
}

// identified returns the file with its identity.
func identified(f *os.File) (*os.File, FileID, error) {
	id, err := identify(f)
	if err != nil {
		_ = f.Close()
		return nil, FileID{}, err
	}
	return f, id, nil
}

// identify returns the identity of an open file.
func identify(f *os.File) (FileID, error) {
	var st syscall.Stat_t
	if err := syscall.Fstat(int(f.Fd()), &st); err != nil {
		return FileID{}, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return FileID{dev: st.Dev, ino: st.Ino, mtime: st.Mtim, UID: int(st.Uid), changed: time.Unix(st.Ctim.Unix())}, nil
}

// matches reports whether the file is the file of the mapping.
func (id FileID) matches(m *process.Mapping) bool {
	return isMapped(m, id.dev, id.ino)
}

// isMapped reports whether a device and an inode are those of the mapped file.
func isMapped(m *process.Mapping, device, inode uint64) bool {
	return inode == m.Inode && devMajor(device) == m.Major && devMinor(device) == m.Minor
}

func (id FileID) key() string {
	return fmt.Sprintf("dev %d ino %d mtime %d.%09d", id.dev, id.ino, id.mtime.Sec, id.mtime.Nsec)
}

// devMajor and devMinor split a dev_t that makedev(3) of Linux has packed.
func devMajor(dev uint64) uint32 { return uint32(dev>>8&0xfff | dev>>32&^0xfff) }
func devMinor(dev uint64) uint32 { return uint32(dev&0xff | dev>>12&^0xff) }
