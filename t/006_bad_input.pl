# Bad input: pids of other clusters, threads and unrelated processes, a worker for the wrong cluster, and a copied pid
# file. Each error must say what is wrong and why. Nothing may hang, and the next call must work.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use File::Copy qw(copy);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
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

$_->quit for $session, $foreign;
$worker->stop;
$_->stop for $node, $other;
done_testing();
