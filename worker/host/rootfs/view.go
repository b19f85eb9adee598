package rootfs

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// SamePath reports whether a path leads to the same file for another process and for this process. root is the root
// directory of the other process, as /proc/PID/root. Two processes with the same root directory can be in different
// mount namespaces, as with PrivateTmp= of a systemd unit. SamePath then compares the files at the path. It returns false
// if the root directories differ, or if the other process's root directory cannot be read.
func SamePath(root, path string) bool {
	if !same("/", root+"/") {
		return false
	}
	return sameMounts(root) || same(path, root+path)
}

// Prefix returns the prefix with which this process reaches a path of another process: "" if the path leads to the same
// file for both (see SamePath), otherwise root. If the other process's root directory cannot be read, the result is "".
func Prefix(root, path string) string {
	if _, err := Stat(root + "/"); err != nil || SamePath(root, path) {
		return ""
	}
	return root
}

// same reports whether two paths lead to the same file.
func same(a, b string) bool {
	infoA, errA := Stat(a)
	infoB, errB := Stat(b)
	return errA == nil && errB == nil && os.SameFile(infoA, infoB)
}

// sameMounts reports whether another process, with the same root directory, has the same mounts as this process. A mount
// belongs to one namespace only, so it suffices to compare the mounts of the root directories. Before Linux 5.8 it compares
// the namespaces.
func sameMounts(root string) bool {
	own, ok1 := mountOf("/")
	theirs, ok2 := mountOf(root + "/")
	if ok1 && ok2 {
		return own == theirs
	}
	space, err1 := os.Readlink("/proc/self/ns/mnt")
	other, err2 := os.Readlink(strings.TrimSuffix(root, "root") + "ns/mnt")
	return err1 == nil && err2 == nil && space == other
}

// mountOf returns the id of the mount to which a path leads. It returns false if the kernel does not report the id.
func mountOf(path string) (id uint64, ok bool) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID, &st)
	return st.Mnt_id, err == nil && st.Mask&unix.STATX_MNT_ID != 0
}
