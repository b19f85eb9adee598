package memctx

import "testing"

// TestOffsets: offsetsOf knows the offsets of each major version.
func TestOffsets(t *testing.T) {
	t.Parallel()
	for major := 14; major <= 19; major++ {
		o, ok := offsetsOf(major)
		if !ok {
			t.Fatalf("version %d has no offsets", major)
		}
		early, header := major < 16, uint64(8)
		if early {
			header = 16
		}
		if o.freeLists != 11 || o.chunkLink != 8 || o.chunkHasSize != early || o.chunkHeader != header {
			t.Errorf("%d: chunks of an AllocSet: %+v", major, o)
		}
		want := slabOffsets{
			fullChunkSize: 84, blockSize: 88, chunksPerBlock: 92, header: 176, empty: 120, lists: 128, count: 3,
			free: -24, owner: -32,
		}
		switch major {
		case 14, 15:
			want = slabOffsets{
				fullChunkSize: 88, blockSize: 96, headerSize: 104, chunksPerBlock: 112, wide: true, lists: 128, free: 16,
			}
		case 16:
			want = slabOffsets{
				fullChunkSize: 88, blockSize: 96, chunksPerBlock: 104, wide: true, header: 192, empty: 136, lists: 144, count: 3,
				free: -24, owner: -32,
			}
		}
		if o.slabs != want {
			t.Errorf("%d: %+v, want %+v", major, o.slabs, want)
		}
	}
	if _, ok := offsetsOf(20); ok {
		t.Error("version 20 has offsets")
	}
}
