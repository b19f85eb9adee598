# Bad input: pids of other clusters, threads and unrelated processes, a second worker, a worker for the wrong cluster,
# a copied pid file, invalid files in the spool, and a full spool. Each error must say what is wrong and why. Nothing
# may hang, and the next call must work.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use File::Copy qw(copy);
use POSIX qw(mkfifo);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);
use Worker qw($FRAME call wait_until backend_pid);

my ($node, $other) = map {
	my $new = PostgreSQL::Test::Cluster->new($_);
	$new->init;
	$new->start;
	$new->safe_psql('postgres', 'CREATE EXTENSION pg_stat_backtrace');
	$new;
} qw(here elsewhere);
my $worker  = Worker->start($node);
my $session = $node->background_psql('postgres');
my $pid     = backend_pid($session);

sub still_works
{
	my ($what) = @_;
	my ($out, undef, undef, $stderr) = call($node, "SELECT pg_get_backtrace($pid)");
	return like($out, $FRAME, "$what: the next call works") || diag($stderr . $worker->log);
}
still_works('to begin with');

# Processes that do not belong to this cluster.
my $foreign = $other->background_psql('postgres');
my %strange = (
	"another cluster's backend"    => backend_pid($foreign),
	"another cluster's postmaster" => $other->{_pid},
	'the worker'                   => $worker->pid,
	'a process of another user'    => 1,
);
my ($thread) = grep { $_ != $worker->pid } map { m{/(\d+)$} } glob '/proc/' . $worker->pid . '/task/*';
$strange{"a thread's id"} = $thread if $thread;
for my $name (sort keys %strange)
{
	my ($out, $level, undef, $stderr) = call($node, "SELECT pg_get_backtrace($strange{$name}) IS NULL");
	is("$out $level", 't WARNING', "$name: WARNING and NULL") or diag($stderr);
}

# One worker for each cluster.
my $second = Worker->start($node, ready => 0);
isnt($second->finish, 0, 'a second worker of the same cluster does not start');
like($second->log, qr/another worker|already/i, 'and says why');
still_works('a second worker');

# A cluster without a worker, although another cluster on the host has one, and although the first one has a copy of
# the other's pid file.
my $foreign_pid = backend_pid($foreign);
my ($out, $level, $state, $stderr) = call($other, "SELECT pg_get_backtrace($foreign_pid)");
is("$level $state", 'ERROR 55000', "a neighbour's worker does not count");
copy($worker->pidfile, $other->data_dir . '/pg_stat_backtrace.pid') or die $!;
($out, $level, $state, $stderr) = call($other, "SELECT pg_get_backtrace($foreign_pid)");
is("$level $state", 'ERROR 55000', "a copy of a neighbour's pid file is recognised");
unlink $other->data_dir . '/pg_stat_backtrace.pid' or die $!;

# A worker for two different clusters, for no cluster, or for a missing server.
my $connection = $node->connstr('postgres') . ' user=' . Worker::superuser();
for my $case (
	[ 'a data directory that is none',         [ '-D', '/nonexistent/data' ] ],
	[ 'a directory without a cluster',         [ '-D', '/tmp' ] ],
	[ 'a connection string that is none',      ['host=/tmp nonsense'] ],
	[ 'a connection string for nobody',        ['host=/nonexistent user=nobody', '-D', '/nonexistent'] ])
{
	my ($what, $args) = @$case;
	my $wrong = Worker->start($node, args => $args, ready => 0);
	isnt($wrong->finish, 0, "$what: the worker ends with an error");
	like($wrong->log, qr/\S/, "$what: and says what is wrong");
}

# A data directory and a connection that lead to different clusters. The worker must report that, whether it ends or
# serves the directory (superusers need no connection). It must never use the wrong server for permission checks.
{
	my $torn = Worker->start($other, args => [ $connection, '-D', $other->data_dir ], ready => 0);
	wait_until('the worker to say so', sub { $torn->log =~ /not to the server in|another cluster|different/ });
	my $here = $node->data_dir;
	like($torn->log, qr/\Q$here\E/, 'two different clusters: the worker names the wrong one');
	$torn->stop if $torn->running;
	ok(!-e $torn->pidfile, 'and leaves no pid file');
}
still_works('workers for the wrong cluster');

# Invalid entries in the spool: files that are not requests, and entries that are not files.
my $spool = $worker->spool;
is((stat $spool)[2] & 07777, 0700, 'the spool directory is private');
my $uuid = sub { sprintf '%08x-0000-4000-8000-%012x', $_[0], $_[0] };
sub put { my ($name, $text) = @_; open my $fh, '>', "$spool/$name" or die "$name: $!"; print $fh $text; close $fh; return }
my $n = 0;
put($uuid->(++$n) . '.req', $_)
  for '', "\0" x 4096, 'rubbish', "{}\n", '[' x 100_000, '{"pid":' . '9' x 400 . '}', "\xff\xfe" x 1000, "\n" x 70_000;
put('not-a-uuid.req', 'x');
put('.req', 'x');
put('x' x 200 . '.req', 'x');
put($uuid->(++$n) . '.rep', 'an answer that nobody asked for');
mkdir "$spool/" . $uuid->(++$n) . '.req' or die $!;
symlink '/etc/passwd', "$spool/" . $uuid->(++$n) . '.req' or die $!;
symlink '/nonexistent', "$spool/" . $uuid->(++$n) . '.req' or die $!;
mkfifo("$spool/" . $uuid->(++$n) . '.req', 0600) or die $!;
still_works('rubbish in the spool');
put($uuid->(++$n) . '.req', 'x' x 10_000_000);
still_works('a request of 10 MB');
ok($worker->running, 'the worker has outlived all of it');

# The spool is moved away. The call gets an error, or an answer through a new spool, and does not hang. Soon calls
# work again.
my $start = time;
rename $spool, "$spool.away" or die $!;
($out, $level, $state, $stderr) = call($node, "SELECT pg_get_backtrace($pid)");
cmp_ok(time - $start, '<', 10, 'a spool that is gone: the call does not hang');
unlike($state, qr/^XX/, "a spool that is gone: no internal error ($state)");
diag("a spool that is gone: $stderr") if $stderr =~ /ERROR/;
wait_until('a new spool', sub { (call($node, "SELECT pg_get_backtrace($pid)"))[0] =~ $FRAME });
isnt($worker->spool, $spool, 'the worker has made a new spool');
system 'rm', '-rf', "$spool.away";

# A full spool.
SKIP:
{
	my $small = $ENV{PGSB_SMALL_FS};
	skip 'no small file system to fill up: only root can mount one (PGSB_SMALL_FS)', 5 unless $small;
	skip 'the worker has no option --spool-dir', 5 unless qx($ENV{PGSB_PROGRAM} worker --help) =~ /--spool-dir/;
	$worker->stop;
	$worker = Worker->start($node, args => [ $connection, '--spool-dir', $small ]);
	like($worker->spool, qr/^\Q$small\E/, 'a worker whose spool is on a small file system');
	still_works('an empty small spool');
	open my $fill, '>', "$small/fill" or die $!;
	my $took;
	wait_until(
		'an error from a full spool',    # the worker may still remove an answer that has been read
		sub {
			1 while (syswrite($fill, 'x' x 4096) // 0) == 4096;
			$start = time;
			($out, $level, $state, $stderr) = call($node, "SELECT pg_get_backtrace($pid)");
			$took = time - $start;
			return $level eq 'ERROR';
		});
	close $fill;
	is($level, 'ERROR', 'a full spool: an error') or diag($out);
	cmp_ok($took, '<', 60, 'and soon');
	diag($stderr) unless $stderr =~ /space|spool/i;
	unlink "$small/fill" or die $!;
	wait_until('the worker to notice that there is room',
		sub { (call($node, "SELECT pg_get_backtrace($pid)"))[0] =~ $FRAME });
	still_works('there is room again');
}

# A role with too many requests gets 53400. Superusers are not limited.
$worker->stop;
$worker = Worker->start($node, args => [ $connection, '--rate', '0.01', '--burst', '3' ]);
$node->safe_psql('postgres', 'CREATE ROLE eager LOGIN; GRANT EXECUTE ON FUNCTION pg_get_backtrace(int) TO eager');
my $own = $node->background_psql('postgres', extra_params => [ '-U', 'eager' ]);
my $owns = backend_pid($own);
for my $round (1 .. 4)
{
	($out, $level, $state, $stderr) = call($node, "SELECT pg_get_backtrace($owns)", role => 'eager');
	is("$level $state", $round <= 3 ? ' ' : 'ERROR 53400', "a limit of three: call $round") or diag($stderr);
}
still_works('a superuser at the same time') for 1 .. 5;
$own->quit;

$_->quit for $session, $foreign;
$worker->stop;
$_->stop for $node, $other;
done_testing();
