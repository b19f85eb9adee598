// Demo records the command top in a private terminal. It writes the screens as an animated SVG and as pictures. The
// script scripts/demo.sh makes the server that the command shows.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// most is the largest demonstration in bytes.
const most = 500_000

// step is a part of the demonstration.
type step struct {
	keys string // sent at the start
	// await are texts that the screen must have, all at a time.
	await []string
	// every adds a frame each time until the texts are there; 0: none.
	every time.Duration
	// hold is how long the last frame is shown.
	hold time.Duration
	// picture is the file of a picture of the last frame; empty: none.
	picture string
}

func story() []step {
	const between = 2500 * time.Millisecond
	return []step{
		{await: []string{"active sessions (now"}, hold: 500 * time.Millisecond},
		{keys: "+", await: []string{"blocks 6 sessions", "(billing-ui, idle in transaction", "(pricing"}, every: between, hold: 4 * time.Second},
		{keys: " ", await: []string{"stopped, data of"}, hold: 500 * time.Millisecond, picture: "top-load.svg"},
		{keys: " \r", await: []string{"wait for locks, in", "reminders"}, hold: 4 * time.Second},
		{keys: "j\r", await: []string{"#0 ", "blocked by ", "stock"}, hold: 6 * time.Second, picture: "top-session.svg"},
		{keys: "2", await: []string{"by wait class"}, hold: 4 * time.Second},
	}
}

func main() {
	program := flag.String("program", "bin/pg_stat_backtrace", "the `PROGRAM` to record")
	dataDir := flag.String("D", "", "the data `DIRECTORY` of the server")
	dir := flag.String("o", "doc/images", "write the files to `DIRECTORY`")
	flag.Parse()
	if err := record(*program, *dataDir, *dir); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// record runs the program through the story.
func record(program, dataDir, dir string) error {
	const columns, lines, patience = 120, 34, 3 * time.Minute
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	t, err := start(ctx, columns, lines, program, "top", "-D", dataDir, "--interval", "500ms")
	if err != nil {
		return err
	}
	defer t.end()
	shell := newScreen(columns, lines)
	shell.write([]byte("\x1b[1m$ pg_stat_backtrace top\x1b[m"))
	frames := []frame{{shell, 1500 * time.Millisecond}}
	for _, s := range story() {
		t.send(s.keys)
		if err := t.await(ctx, patience, s.await, s.every, func(x *screen) {
			frames = append(frames, frame{x, 500 * time.Millisecond})
		}); err != nil {
			return err
		}
		x := t.snapshot()
		frames = append(frames, frame{x, s.hold})
		if s.picture != "" {
			if err := os.WriteFile(filepath.Join(dir, s.picture), []byte(picture(x)), 0o644); err != nil {
				return err
			}
		}
	}
	t.send("q")
	text := animation(frames)
	if len(text) > most {
		return fmt.Errorf("the demonstration has %d bytes, more than %d", len(text), most)
	}
	fmt.Printf("%d frames, %d bytes\n", len(frames), len(text))
	return os.WriteFile(filepath.Join(dir, "top.svg"), []byte(text), 0o644)
}

// has reports whether a screen shows all texts.
func (x *screen) has(texts []string) bool {
	shown := x.String()
	for _, text := range texts {
		if !strings.Contains(shown, text) {
			return false
		}
	}
	return true
}
