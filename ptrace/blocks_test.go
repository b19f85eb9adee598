package ptrace

import (
	"bytes"
	"testing"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
)

// TestBlocks copies more blocks than fit into one system call, some of them unreadable.
func TestBlocks(t *testing.T) {
	t.Parallel()
	c := startTarget(t, "listed", "6")
	maps, err := process.Maps(c.pid)
	if err != nil {
		t.Fatal(err)
	}
	var image *process.Mapping
	for i := range maps {
		if maps[i].Perms&process.Exec != 0 && maps[i].Inode != 0 {
			image = &maps[i]
			break
		}
	}
	want := make([]byte, 512)
	if _, err := process.ReadMemory(c.pid, image.Start, want); err != nil {
		t.Fatal(err)
	}
	const unreadable = 40
	var blocks []snapshot.Block
	for i := range 3*maxVectors + 7 {
		b := snapshot.Block{Address: image.Start + uint64(i%200), Length: 1 + i%300}
		if i%100 == 5 {
			b.Address = 8
		}
		blocks = append(blocks, b)
	}
	s := mustCapture(t, c.pid, snapshot.Options{Blocks: blocks})
	if len(s.Blocks) != len(blocks) {
		t.Fatalf("%d blocks, not %d", len(s.Blocks), len(blocks))
	}
	missing := 0
	for i, b := range blocks {
		got := s.Blocks[i]
		switch {
		case b.Address == 8:
			missing++
			if got.Data != nil {
				t.Errorf("block %d of no memory has %d bytes", i, len(got.Data))
			}
		case got.Start != b.Address || !bytes.Equal(got.Data, want[i%200:][:b.Length]):
			t.Fatalf("block %d at 0x%x has % x", i, got.Start, got.Data)
		}
	}
	if missing == 0 || missing > unreadable {
		t.Errorf("%d blocks without memory", missing)
	}
	if s := mustCapture(t, c.pid, snapshot.Options{}); s.Blocks != nil {
		t.Errorf("without blocks: %d", len(s.Blocks))
	}
	huge := []snapshot.Block{{Address: image.Start, Length: 512}, {Address: image.Start, Length: maxCopiedSize}}
	s = mustCapture(t, c.pid, snapshot.Options{Blocks: huge})
	if len(s.Blocks) != 1 || !bytes.Equal(s.Blocks[0].Data, want) {
		t.Errorf("%d blocks of more than may be copied", len(s.Blocks))
	}
}
