package buildcache

import (
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
)

// folder is the name of this program's folder.
const folder = "pg_stat_backtrace"

// rootFolder is root's folder. It does not depend on the environment: sudo may have kept another user's environment. Only tests
// change it.
var rootFolder = Folder("/var/cache/" + folder + "/root")

// started is the id of the user as which the program was started. The environment belongs to this user.
var started = os.Geteuid()

// Own returns the folder of the user as which the program runs now: root's, or pg_stat_backtrace in systemd's
// $CACHE_DIRECTORY (systemd.exec(5)), in $XDG_CACHE_HOME or in .cache of the home directory. It is "" for a user
// without any of these.
func Own() Folder { return own(os.Getenv, os.Geteuid(), os.Geteuid() == started) }

// own does the work of Own for the user uid. The parameter sinceStart is set if the program was started as this user. Otherwise
// the variables XDG_CACHE_HOME and HOME belong to another user.
func own(getenv func(string) string, uid int, sinceStart bool) Folder {
	if uid == 0 {
		return rootFolder
	}
	if dir, _, _ := strings.Cut(getenv("CACHE_DIRECTORY"), ":"); filepath.IsAbs(dir) {
		return within(dir)
	}
	if sinceStart {
		if dir := getenv("XDG_CACHE_HOME"); filepath.IsAbs(dir) {
			return within(dir)
		}
		if home := getenv("HOME"); isHome(home) {
			return within(home, ".cache")
		}
	}
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil && isHome(u.HomeDir) {
		return within(u.HomeDir, ".cache")
	}
	return ""
}

func within(dirs ...string) Folder { return Folder(filepath.Join(append(dirs, folder)...)) }

// isHome reports whether a path can be a home directory. Accounts without one have / or /nonexistent.
func isHome(dir string) bool { return filepath.IsAbs(dir) && dir != "/" && dir != "/nonexistent" }
