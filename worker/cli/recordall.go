package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/host/rootfs"
)

// userFolders creates the folders to which the workers of a host record. There is a folder for each user id of a server, because a
// worker has only the rights of its server's user.
type userFolders struct {
	dir  string // empty: nothing is recorded
	log  zerolog.Logger
	lock sync.Mutex
	told map[string]bool // texts of errors that were logged
}

// words returns the flags for a worker whose server runs as uid. If the folder for uid cannot be created, the worker records
// nothing, and words logs the reason once.
func (u *userFolders) words(uid int) []string {
	if u.dir == "" {
		return nil
	}
	folder, err := makeFolder(u.dir, uid)
	if err == nil {
		return []string{"--" + console.FlagRecordDir + "=" + folder}
	}
	u.lock.Lock()
	defer u.lock.Unlock()
	if text := err.Error(); !u.told[text] {
		u.told[text] = true
		u.log.Error().Err(err).Int("uid", uid).Msg("no history is recorded for the servers of this user")
	}
	return nil
}

// makeFolder returns the folder of a user id below dir, and creates dir and the folder if they are missing. It returns an error
// unless dir belongs to the user of this process and only this user can write to it: otherwise another user could replace a
// folder.
func makeFolder(dir string, uid int) (string, error) {
	if err := os.Mkdir(dir, 0o700); err == nil {
		if err := rootfs.SetMode(dir, unix.S_IFDIR, folderMode); err != nil { // os.Mkdir would apply the umask
			return "", err
		}
	} else if !errors.Is(err, os.ErrExist) {
		return "", err
	}
	at, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(at)
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	switch {
	case int(st.Uid) != os.Geteuid():
		return "", fmt.Errorf("%s belongs to user %d, and this program is user %d", dir, st.Uid, os.Geteuid())
	case st.Mode&0o022 != 0:
		return "", fmt.Errorf("others may write to %s (mode %04o): chmod %o %s", dir, st.Mode&0o7777, folderMode, dir)
	case uid != os.Geteuid() && st.Mode&0o005 != 0o005:
		return "", fmt.Errorf("the workers cannot read %s (mode %04o): chmod %o %s", dir, st.Mode&0o7777, folderMode, dir)
	}
	name := store.UserFolder + strconv.Itoa(uid)
	path := filepath.Join(dir, name)
	if err := unix.Mkdirat(at, name, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return "", &os.PathError{Op: "mkdir", Path: path, Err: err}
	}
	if err := unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return "", &os.PathError{Op: "stat", Path: path, Err: err}
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return "", fmt.Errorf("%s is not a directory", path)
	case int(st.Uid) == uid:
		return path, nil
	case int(st.Uid) != os.Geteuid():
		return "", fmt.Errorf("%s belongs to user %d", path, st.Uid)
	}
	if err := unix.Fchownat(at, name, uid, -1, unix.AT_SYMLINK_NOFOLLOW); err != nil { // the folder is new
		return "", fmt.Errorf("%w; changing the owner needs CAP_CHOWN", &os.PathError{Op: "chown", Path: path, Err: err})
	}
	return path, nil
}

// folderMode is the mode of the directory with the folders. Each worker must be able to read this directory: it counts the folders
// to compute its part of --record-size.
const folderMode = 0o755
