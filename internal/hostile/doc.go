// Package hostile contains only tests. They run pg_stat_backtrace on hostile files, and measure its memory and the size of its
// output. They cover all commands that read files of unknown origin. The tests make the files, or the files are in testdata.
package hostile
