package console

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"pg_stat_backtrace/worker/naming/debuginfod"
	"pg_stat_backtrace/worker/report/render"
)

// debuginfodOff, in place of a server's URL, turns debuginfod off even if the environment names servers.
const debuginfodOff = "off"

// DebuginfodFlags are the flags of commands that can download debug files from debuginfod servers.
type DebuginfodFlags struct {
	urls                         []string
	cache                        string
	maxSize, cacheSize, minSpace string
}

// Add adds the flags to a command.
func (f *DebuginfodFlags) Add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringArrayVar(&f.urls, "debuginfod", nil,
		"get missing debug files from the debuginfod server at `URL`; may be given several times; "+
			"\"off\" for none (default $"+debuginfod.EnvURLs+")")
	fs.StringVar(&f.cache, "debuginfod-cache", "",
		"keep downloaded debug files in `DIRECTORY` (default $"+debuginfod.EnvCache+
			", else debuginfod_client in the user's cache)")
	fs.StringVar(&f.maxSize, "debuginfod-max-size", "",
		"download no debug file larger than `SIZE`, such as 500MB; 0 for no limit (default $"+debuginfod.EnvMaxSize+
			", else 1GB)")
	fs.StringVar(&f.cacheSize, "debuginfod-cache-size", "",
		"remove the least recently used downloads beyond `SIZE`; 0 for no limit (default 4GB)")
	fs.StringVar(&f.minSpace, "debuginfod-min-free", "",
		"download no file that would leave less than `SIZE` free in the cache's file system (default 1GB)")
	_ = cmd.MarkFlagDirname("debuginfod-cache")
}

// Config returns the configuration from environment and flags. Flags take precedence. CacheDir may be empty.
func (f *DebuginfodFlags) Config() (debuginfod.Config, error) {
	cfg, err := debuginfod.FromEnv(os.Getenv)
	if err != nil {
		return cfg, err
	}
	if f.urls != nil {
		cfg.URLs = nil
		for _, list := range f.urls {
			cfg.URLs = append(cfg.URLs, debuginfod.SplitURLs(list)...)
		}
	}
	if len(cfg.URLs) == 1 && cfg.URLs[0] == debuginfodOff {
		cfg.URLs = nil
	}
	if f.cache != "" {
		cfg.CacheDir = f.cache
	}
	for _, size := range []struct {
		flag, text string
		to         *int64
	}{
		{"--debuginfod-max-size", f.maxSize, &cfg.MaxSize},
		{"--debuginfod-cache-size", f.cacheSize, &cfg.CacheSize},
		{"--debuginfod-min-free", f.minSpace, &cfg.MinFree},
	} {
		if size.text == "" {
			continue
		}
		n, err := ParseSize(size.text)
		if err != nil {
			return cfg, fmt.Errorf("%s: %w", size.flag, err)
		}
		if *size.to = n; n == 0 {
			*size.to = debuginfod.None
		}
	}
	return cfg, cfg.Check()
}

// Client returns a client that uses this user's cache; nil without an error: no server is configured.
func (f *DebuginfodFlags) Client(onEvent func(debuginfod.Event)) (*debuginfod.Client, error) {
	cfg, err := f.Config()
	if err != nil {
		return nil, Usage(err)
	}
	if cfg.Off() {
		return nil, nil //nolint:nilnil // off is not an error
	}
	if cfg.CacheDir == "" {
		if cfg.CacheDir, err = debuginfod.DefaultCacheDir(os.Getenv); err != nil {
			return nil, err
		}
	}
	cfg.OnEvent = onEvent
	return debuginfod.New(cfg)
}

// ParseSize reads a size with a unit as in PostgreSQL's settings: B, kB, MB, GB or TB, each 1024 times the unit before it. No
// unit means bytes. The result is in bytes, and not negative.
func ParseSize(s string) (int64, error) {
	digits := strings.TrimRight(s, "BkKMGT ")
	unit := strings.TrimSpace(s[len(digits):])
	shift, ok := map[string]int{"": 0, "B": 0, "kB": 10, "KB": 10, "MB": 20, "GB": 30, "TB": 40}[unit]
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || !ok || n < 0 || n > 1<<62>>shift {
		return 0, fmt.Errorf("%q is not a size such as 500MB", s)
	}
	return n << shift, nil
}

// Words returns the flags of the command line, quoted for a shell, to repeat them in a command that advice shows. "off" is left
// out, because that advice adds a server.
func (f *DebuginfodFlags) Words() (words []string) {
	for _, url := range f.urls {
		if url != debuginfodOff {
			words = append(words, "--debuginfod", render.ShellWord(url))
		}
	}
	for _, flag := range []struct{ name, value string }{
		{"--debuginfod-cache", f.cache}, {"--debuginfod-max-size", f.maxSize}, {"--debuginfod-cache-size", f.cacheSize},
		{"--debuginfod-min-free", f.minSpace},
	} {
		if flag.value != "" {
			words = append(words, flag.name, render.ShellWord(flag.value))
		}
	}
	return words
}
