package console

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/worker/naming/debuginfod"
)

func TestDebuginfodFlags(t *testing.T) {
	t.Setenv(debuginfod.EnvURLs, "http://env")
	t.Setenv(debuginfod.EnvMaxSize, "5")
	t.Setenv(debuginfod.EnvCache, "/env")
	cfg, err := (&DebuginfodFlags{}).Config()
	if err != nil || len(cfg.URLs) != 1 || cfg.MaxSize != 5 || cfg.CacheDir != "/env" {
		t.Errorf("%+v, %v", cfg, err)
	}
	f := DebuginfodFlags{
		urls: []string{"http://a http://b", "http://c"}, cache: "/flag", maxSize: "10MB", cacheSize: "0", minSpace: "1GB",
	}
	cfg, err = f.Config()
	if err != nil || len(cfg.URLs) != 3 || cfg.MaxSize != 10<<20 || cfg.CacheSize != debuginfod.None ||
		cfg.MinFree != 1<<30 || cfg.CacheDir != "/flag" {
		t.Errorf("%+v, %v", cfg, err)
	}
	if cfg, err = (&DebuginfodFlags{urls: []string{debuginfodOff}}).Config(); err != nil || !cfg.Off() {
		t.Errorf("%+v, %v", cfg, err)
	}
	for s, want := range map[string]int64{
		"0": 0, "7": 7, "7B": 7, "1kB": 1024, "2 MB": 2 << 20, "3GB": 3 << 30, "1TB": 1 << 40,
	} {
		if got, err := ParseSize(s); err != nil || got != want {
			t.Errorf("%q: %d, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "x", "-1", "1.5GB", "9223372036854775807kB", "1EB", "MB"} {
		if got, err := ParseSize(s); err == nil {
			t.Errorf("%q: %d", s, got)
		}
	}
}

// TestProgress: a bar on a terminal, lines elsewhere.
func TestProgress(t *testing.T) {
	events := []debuginfod.Event{
		{Kind: debuginfod.Started, Total: 10 << 20, Server: "http://a"},
		{Kind: debuginfod.Progress, Total: 10 << 20, Bytes: 5 << 20, Took: time.Second},
		{Kind: debuginfod.Arrived, Total: 10 << 20, Bytes: 10 << 20, Took: 2 * time.Second},
	}
	show := func(terminal bool, err error, events ...debuginfod.Event) (*Progress, string) {
		var b bytes.Buffer
		p := &Progress{w: &b, terminal: terminal}
		p.Begin("postgres")
		for _, e := range events {
			p.Event(e)
		}
		p.End(err)
		return p, b.String()
	}
	_, lines := show(false, nil, events...)
	want := "postgres                 fetching 10 MB from http://a\n" +
		"postgres                  50 %  5120 kB of 10 MB  5120 kB/s\n" +
		"postgres                 fetched 10 MB in 2.0 s\n"
	if lines != want {
		t.Errorf("got\n%swant\n%s", lines, want)
	}
	_, bars := show(true, nil, events...)
	for _, want := range []string{
		"\r\x1b[Kpostgres                 [----------", "[##########----------]  50 %  5120 kB of 10 MB  5120 kB/s",
		"[####################] 100 %", "\r\x1b[Kpostgres                 fetched 10 MB in 2.0 s\n",
	} {
		if !strings.Contains(bars, want) {
			t.Errorf("%q is not in %q", want, bars)
		}
	}
	if p, out := show(false, debuginfod.ErrNotFound); p.Failed() || !strings.Contains(out, "no server has") {
		t.Error(out)
	}
	if p, out := show(false, errors.New("broken")); !p.Failed() || !strings.Contains(out, "broken") {
		t.Error(out)
	}
	unknown := debuginfod.Event{Kind: debuginfod.Progress, Bytes: 3 << 20}
	if _, out := show(true, nil, unknown); !strings.Contains(out, " 3072 kB") {
		t.Errorf("a size that is not known: %q", out)
	}
}
