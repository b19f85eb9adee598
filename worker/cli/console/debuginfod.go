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

// debuginfodOff, as a server, turns debuginfod off in spite of the environment.
const debuginfodOff = "off"

// DebuginfodFlags are the flags of the commands that may ask debuginfod.
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

// Config returns what environment and flags say; flags win. The cache folder may be left open.
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

// Client makes a client that uses this user's cache.
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

// ParseSize reads a number of bytes with a unit as PostgreSQL's settings have it: B, kB, MB, GB or TB, each 1024 times
// the one before. No unit means bytes.
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

// Words returns the flags as a shell takes them. "off" is left out: the advice names a server then.
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
