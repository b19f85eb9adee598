package debuginfod

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// The environment variables, as debuginfod-client-config(7) describes them.
const (
	EnvURLs    = "DEBUGINFOD_URLS"
	EnvCache   = "DEBUGINFOD_CACHE_PATH"
	EnvTimeout = "DEBUGINFOD_TIMEOUT"
	EnvMaxTime = "DEBUGINFOD_MAXTIME"
	EnvMaxSize = "DEBUGINFOD_MAXSIZE"
	// EnvProgress, when set, asks programs that would be silent to tell of downloads on stderr.
	EnvProgress = "DEBUGINFOD_PROGRESS"
)

// FromEnv returns the configuration that the environment holds: servers, cache folder and limits, with the meanings of
// elfutils' client: seconds and bytes, where 0 (for the timeout also less) means no limit. A variable that is not set
// leaves the field 0, which means this package's default.
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

// seconds turns a number of seconds into a duration, as far as one reaches.
func seconds(n int64) time.Duration {
	const most = int64(1<<63-1) / int64(time.Second)
	return time.Duration(min(n, most)) * time.Second
}

// SplitURLs splits a list of URLs at white space. The words with which newer clients are told about signatures
// ("ima:enforcing") are no URLs and are left out.
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

// DefaultCacheDir returns the folder that the other clients of this user use: $DEBUGINFOD_CACHE_PATH, or
// debuginfod_client in $XDG_CACHE_HOME or ~/.cache.
func DefaultCacheDir(getenv func(string) string) (string, error) {
	if dir := getenv(EnvCache); dir != "" {
		return dir, nil
	}
	if dir := getenv("XDG_CACHE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, folder), nil
	}
	home := getenv("HOME")
	if home == "" {
		return homeCache(os.Geteuid())
	}
	return filepath.Join(home, ".cache", folder), nil
}

// ServiceCacheDir returns the folder for a service that runs as user uid now: $DEBUGINFOD_CACHE_PATH, or
// debuginfod_client in systemd's $CACHE_DIRECTORY (systemd.exec(5)) or in .cache of that user's home directory. $HOME
// and $XDG_CACHE_HOME count only if the service has been that user from its start on: else they are another's.
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

// homeCache returns the cache in the home directory that the user database has.
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
