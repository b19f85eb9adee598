package debuginfod

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// The environment variables, as debuginfod-client-config(7) describes them.
const (
	EnvURLs    = "DEBUGINFOD_URLS"
	EnvCache   = "DEBUGINFOD_CACHE_PATH"
	EnvTimeout = "DEBUGINFOD_TIMEOUT"
	EnvMaxTime = "DEBUGINFOD_MAXTIME"
	EnvMaxSize = "DEBUGINFOD_MAXSIZE"
	// EnvProgress, if set, makes otherwise silent programs report downloads on stderr.
	EnvProgress = "DEBUGINFOD_PROGRESS"
)

// FromEnv returns the configuration from the environment: servers, cache folder and limits. The values have the same
// meaning as in elfutils' client: seconds and bytes, and 0 or less means no limit. An unset variable leaves the field
// 0, which means this package's default.
func FromEnv(getenv func(string) string) (Config, error) {
	cfg := Config{URLs: SplitURLs(getenv(EnvURLs)), CacheDir: getenv(EnvCache)}
	var err error
	number := func(name string) int64 {
		s := strings.TrimSpace(getenv(name))
		if s == "" || err != nil {
			return 0
		}
		n, parseErr := strconv.ParseInt(s, 10, 64)
		switch {
		case parseErr != nil:
			err = fmt.Errorf("%s is not a number: %q", name, s)
			return 0
		case n <= 0:
			return None
		}
		return n
	}
	cfg.Timeout = seconds(number(EnvTimeout))
	cfg.MaxTime = seconds(number(EnvMaxTime))
	cfg.MaxSize = number(EnvMaxSize)
	return cfg, err
}

// seconds converts seconds to a duration, at most the longest that the type can have.
func seconds(n int64) time.Duration {
	const most = int64(1<<63-1) / int64(time.Second)
	return time.Duration(min(n, most)) * time.Second
}

// SplitURLs splits a list of URLs at white space. It leaves out words that configure signatures for newer clients
// ("ima:enforcing").
func SplitURLs(list string) []string {
	var urls []string
	for word := range strings.FieldsSeq(list) {
		if !strings.HasPrefix(word, "ima:") {
			urls = append(urls, word)
		}
	}
	return urls
}

// folder is the name of the cache below a folder for caches.
const folder = "debuginfod_client"

// DefaultCacheDir returns the folder that this user's other clients use: $DEBUGINFOD_CACHE_PATH, or debuginfod_client
// in $XDG_CACHE_HOME or ~/.cache. If the environment of root names a directory of another user for one of the last two, it is
// the folder in root's home directory.
func DefaultCacheDir(getenv func(string) string) (string, error) {
	if dir := getenv(EnvCache); dir != "" {
		return dir, nil
	}
	root := os.Geteuid() == 0
	if root && ofOtherUser(getenv("HOME")) { // that user could not read what root has downloaded
		return homeCache(0)
	}
	if dir := getenv("XDG_CACHE_HOME"); filepath.IsAbs(dir) && !(root && ofOtherUser(dir)) { // su keeps this variable
		return filepath.Join(dir, folder), nil
	}
	home := getenv("HOME")
	if home == "" {
		return homeCache(os.Geteuid())
	}
	return filepath.Join(home, ".cache", folder), nil
}

// ofOtherUser reports whether a directory, or a directory above it, belongs to another user than root. The directory need not
// exist yet.
func ofOtherUser(dir string) bool {
	for filepath.IsAbs(dir) {
		if info, err := os.Stat(dir); err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 {
				return true
			}
		}
		above := filepath.Dir(dir)
		if above == dir {
			break
		}
		dir = above
	}
	return false
}

// ServiceCacheDir returns the folder for a service that now runs as user uid: $DEBUGINFOD_CACHE_PATH, or
// debuginfod_client in systemd's $CACHE_DIRECTORY (systemd.exec(5)) or in .cache of that user's home directory.
// sinceStart means that the service has always been that user. Otherwise $HOME and $XDG_CACHE_HOME belong to another
// user and are ignored.
func ServiceCacheDir(getenv func(string) string, uid int, sinceStart bool) (string, error) {
	if dir := getenv(EnvCache); dir != "" {
		return dir, nil
	}
	if dir, _, _ := strings.Cut(getenv("CACHE_DIRECTORY"), ":"); filepath.IsAbs(dir) {
		return filepath.Join(dir, folder), nil
	}
	if sinceStart {
		return DefaultCacheDir(getenv)
	}
	return homeCache(uid)
}

// homeCache returns the cache in the home directory according to the user database.
func homeCache(uid int) (string, error) {
	u, err := user.LookupId(strconv.Itoa(uid))
	if err != nil {
		return "", fmt.Errorf("no folder for the debuginfod cache: %w; name one in %s", err, EnvCache)
	}
	if !filepath.IsAbs(u.HomeDir) || u.HomeDir == "/" || u.HomeDir == "/nonexistent" {
		return "", fmt.Errorf("no folder for the debuginfod cache: user %s has no home directory; name one in %s",
			u.Username, EnvCache)
	}
	return filepath.Join(u.HomeDir, ".cache", folder), nil
}
