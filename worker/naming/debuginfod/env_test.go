package debuginfod

import (
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

func env(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

func TestFromEnv(t *testing.T) {
	cfg, err := FromEnv(env())
	if err != nil || !cfg.Off() || cfg.Timeout != 0 || cfg.MaxSize != 0 {
		t.Errorf("%+v, %v", cfg, err)
	}
	cfg, err = FromEnv(env(EnvURLs, " http://a/x \t ima:enforcing https://b\n ima:ignore ", EnvCache, "/c",
		EnvTimeout, "5", EnvMaxTime, "60", EnvMaxSize, " 1000 "))
	if err != nil || !slices.Equal(cfg.URLs, []string{"http://a/x", "https://b"}) || cfg.CacheDir != "/c" ||
		cfg.Timeout != 5*time.Second || cfg.MaxTime != time.Minute || cfg.MaxSize != 1000 {
		t.Errorf("%+v, %v", cfg, err)
	}
	cfg, err = FromEnv(env(EnvTimeout, "-1", EnvMaxTime, "0", EnvMaxSize, "0"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.setDefaults()
	if cfg.Timeout != 0 || cfg.MaxTime != 0 || cfg.MaxSize != 0 || cfg.CacheSize != DefaultCacheSize {
		t.Errorf("%+v", cfg)
	}
	cfg, err = FromEnv(env(EnvTimeout, "9223372036854775807"))
	if err != nil || cfg.Timeout < 1<<62 {
		t.Errorf("%+v, %v", cfg, err)
	}
	for _, name := range []string{EnvTimeout, EnvMaxTime, EnvMaxSize} {
		if _, err := FromEnv(env(name, "90s")); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestMalformedURLs checks that malformed URLs are refused, and that the error does not contain a password.
func TestMalformedURLs(t *testing.T) {
	for _, s := range []string{
		"https://me:50%off@a/", "https://me:50off/x@a/", "me:50off@a", "https://me:50off@", "ftp://me:50off@a/",
		"https://me:50off@a/?x", "https://a:b/", "a", "https:///x",
	} {
		if _, err := newServers([]string{"https://b", s}); err == nil || strings.Contains(err.Error(), "50") {
			t.Errorf("%s: %v", s, err)
		}
	}
	if _, err := newServers([]string{"https://me:secret@a/", "https://a/x@y"}); err != nil {
		t.Error(err)
	}
}

func TestCacheDirs(t *testing.T) {
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	uid, err := strconv.Atoi(me.Uid)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		env   []string
		user  string
		since string
		other string
	}{
		{[]string{EnvCache, "/c", "HOME", "/h"}, "/c", "/c", "/c"},
		{
			[]string{"XDG_CACHE_HOME", "/x", "HOME", "/h"}, "/x/debuginfod_client", "/x/debuginfod_client",
			filepath.Join(me.HomeDir, ".cache/debuginfod_client"),
		},
		{
			[]string{"XDG_CACHE_HOME", "x", "HOME", "/h", "CACHE_DIRECTORY", "/s:/t"}, "/h/.cache/debuginfod_client",
			"/s/debuginfod_client", "/s/debuginfod_client",
		},
	}
	for _, tt := range tests {
		user, err1 := DefaultCacheDir(env(tt.env...))
		since, err2 := ServiceCacheDir(env(tt.env...), uid, true)
		other, err3 := ServiceCacheDir(env(tt.env...), uid, false)
		if user != tt.user || since != tt.since || other != tt.other || err1 != nil || err2 != nil || err3 != nil {
			t.Errorf("%q: %q %q %q, %v %v %v", tt.env, user, since, other, err1, err2, err3)
		}
	}
	if os.Geteuid() == 0 { // sudo can keep the environment of another user, and su keeps all but HOME
		home := t.TempDir()
		if err := os.Chown(home, 12345, 12345); err != nil {
			t.Fatal(err)
		}
		want := filepath.Join(me.HomeDir, ".cache/debuginfod_client")
		if err := os.Mkdir(home+"/root's", 0o700); err != nil {
			t.Fatal(err)
		}
		for _, e := range [][]string{
			{"HOME", home}, {"HOME", home, "XDG_CACHE_HOME", home + "/cache"}, {"HOME", me.HomeDir, "XDG_CACHE_HOME", home},
			{"HOME", me.HomeDir, "XDG_CACHE_HOME", home + "/none/cache"}, {"HOME", me.HomeDir, "XDG_CACHE_HOME", home + "/root's"},
			{"HOME", home + "/root's"},
		} {
			if dir, err := DefaultCacheDir(env(e...)); dir != want || err != nil {
				t.Errorf("%q: root has %q, %v", e, dir, err)
			}
		}
	}
	if dir, err := ServiceCacheDir(env("HOME", "/root"), 1<<30, false); err == nil {
		t.Errorf("a user that does not exist has %q", dir)
	}
}

func TestValidID(t *testing.T) {
	for id, want := range map[string]bool{
		buildID: true, "abcd": true, strings.Repeat("ab", 64): true,
		"": false, "ab": false, "abc": false, "abcg": false, "ABCD": false, "..": false, "../../etc/passwd": false,
		"ab/c": false, "ab\x00c": false, strings.Repeat("ab", 65): false, "ab%2": false, "abc?": false,
	} {
		if ValidID(id) != want {
			t.Errorf("%q", id)
		}
	}
}
