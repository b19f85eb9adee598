package layout

// Layout has the structures of one major version. Members have their names in C, in the form of Go: PGPROC.waitLock is
// PGPROC.WaitLock.
type Layout struct {
	// Major is the major version. Source names the headers and the sources that the layout comes from.
	Major  int
	Source string

	PGPROC struct {
		Size                    Offset
		Links                   Offset `c:"links|freeProcsLink"`
		WaitLink                Offset `c:"waitLink"`
		PID                     Offset `c:"pid"`
		Pgprocno                Offset `c:"pgprocno"`
		ProcLatch               Offset `c:"procLatch"`
		Xid                     Offset `c:"xid"`
		Xmin                    Offset `c:"xmin"`
		Lxid                    Offset `c:"vxid.lxid|lxid"`
		BackendId               Offset `c:"vxid.procNumber|backendId"`
		DatabaseId              Offset `c:"databaseId"`
		RoleId                  Offset `c:"roleId"`
		TempNamespaceId         Offset `c:"tempNamespaceId"`
		IsBackgroundWorker      Offset `c:"isBackgroundWorker"`
		IsRegularBackend        Offset `c:"isRegularBackend"`
		RecoveryConflictPending Offset `c:"recoveryConflictPending"`
		LwWaiting               Offset `c:"lwWaiting"`
		LwWaitMode              Offset `c:"lwWaitMode"`
		LwWaitLink              Offset `c:"lwWaitLink"`
		WaitLock                Offset `c:"waitLock"`
		WaitProcLock            Offset `c:"waitProcLock"`
		WaitLockMode            Offset `c:"waitLockMode"`
		HeldLocks               Offset `c:"heldLocks"`
		WaitStart               Offset `c:"waitStart"`
		WaitStatus              Offset `c:"waitStatus"`
		DelayChkpt              Offset `c:"delayChkptFlags|delayChkpt"`
		StatusFlags             Offset `c:"statusFlags"`
		WaitLSN                 Offset `c:"waitLSN"`
		SyncRepState            Offset `c:"syncRepState"`
		SyncRepLinks            Offset `c:"syncRepLinks"`
		MyProcLocks             Offset `c:"myProcLocks"`
		SubxidStatus            Offset `c:"subxidStatus"`
		Subxids                 Offset `c:"subxids"`
		ProcArrayGroupMember    Offset `c:"procArrayGroupMember"`
		WaitEventInfo           Offset `c:"wait_event_info"`
		FpInfoLock              Offset `c:"fpInfoLock"`
		FpLockBits              Offset `c:"fpLockBits"`
		FpRelId                 Offset `c:"fpRelId"`
		FpVXIDLock              Offset `c:"fpVXIDLock"`
		FpLocalTransactionId    Offset `c:"fpLocalTransactionId"`
		LockGroupLeader         Offset `c:"lockGroupLeader"`
		LockGroupMembers        Offset `c:"lockGroupMembers"`
		LockGroupLink           Offset `c:"lockGroupLink"`
	} `c:"PGPROC"`

	ProcHdr struct {
		Size                      Offset
		AllProcs                  Offset `c:"allProcs"`
		Xids                      Offset `c:"xids"`
		AllProcCount              Offset `c:"allProcCount"`
		WalwriterLatch            Offset `c:"walwriterLatch"`
		WalwriterProc             Offset `c:"walwriterProc"`
		CheckpointerLatch         Offset `c:"checkpointerLatch"`
		CheckpointerProc          Offset `c:"checkpointerProc"`
		StartupBufferPinWaitBufId Offset `c:"startupBufferPinWaitBufId"`
	} `c:"PROC_HDR"`

	LOCKTAG struct {
		Size                Offset
		LocktagField1       Offset `c:"locktag_field1"`
		LocktagField2       Offset `c:"locktag_field2"`
		LocktagField3       Offset `c:"locktag_field3"`
		LocktagField4       Offset `c:"locktag_field4"`
		LocktagType         Offset `c:"locktag_type"`
		LocktagLockmethodid Offset `c:"locktag_lockmethodid"`
	} `c:"LOCKTAG"`

	LOCK struct {
		Size       Offset
		Tag        Offset `c:"tag"`
		GrantMask  Offset `c:"grantMask"`
		WaitMask   Offset `c:"waitMask"`
		ProcLocks  Offset `c:"procLocks"`
		WaitProcs  Offset `c:"waitProcs"`
		Requested  Offset `c:"requested"`
		NRequested Offset `c:"nRequested"`
		Granted    Offset `c:"granted"`
		NGranted   Offset `c:"nGranted"`
	} `c:"LOCK"`

	PROCLOCK struct {
		Size        Offset
		Tag         Offset `c:"tag"`
		MyLock      Offset `c:"tag.myLock"`
		MyProc      Offset `c:"tag.myProc"`
		GroupLeader Offset `c:"groupLeader"`
		HoldMask    Offset `c:"holdMask"`
		ReleaseMask Offset `c:"releaseMask"`
		LockLink    Offset `c:"lockLink"`
		ProcLink    Offset `c:"procLink"`
	} `c:"PROCLOCK"`

	DlistNode struct {
		Size Offset
		Prev Offset `c:"prev"`
		Next Offset `c:"next"`
	} `c:"dlist_node"`

	PgBackendStatus struct {
		Size                     Offset
		StChangecount            Offset `c:"st_changecount"`
		StProcpid                Offset `c:"st_procpid"`
		StBackendType            Offset `c:"st_backendType"`
		StProcStartTimestamp     Offset `c:"st_proc_start_timestamp"`
		StXactStartTimestamp     Offset `c:"st_xact_start_timestamp"`
		StActivityStartTimestamp Offset `c:"st_activity_start_timestamp"`
		StStateStartTimestamp    Offset `c:"st_state_start_timestamp"`
		StDatabaseid             Offset `c:"st_databaseid"`
		StUserid                 Offset `c:"st_userid"`
		StClientaddr             Offset `c:"st_clientaddr"`
		StClienthostname         Offset `c:"st_clienthostname"`
		StSsl                    Offset `c:"st_ssl"`
		StSslstatus              Offset `c:"st_sslstatus"`
		StGss                    Offset `c:"st_gss"`
		StGssstatus              Offset `c:"st_gssstatus"`
		StState                  Offset `c:"st_state"`
		StAppname                Offset `c:"st_appname"`
		StActivityRaw            Offset `c:"st_activity_raw"`
		StProgressCommand        Offset `c:"st_progress_command"`
		StProgressCommandTarget  Offset `c:"st_progress_command_target"`
		StProgressParam          Offset `c:"st_progress_param"`
		StQueryId                Offset `c:"st_query_id"`
		StPlanId                 Offset `c:"st_plan_id"`
	} `c:"PgBackendStatus"`

	Port struct {
		Size            Offset
		RemoteHost      Offset `c:"remote_host"`
		DatabaseName    Offset `c:"database_name"`
		UserName        Offset `c:"user_name"`
		ApplicationName Offset `c:"application_name"`
	} `c:"Port"`

	BackgroundWorker struct {
		Size     Offset
		BgwName  Offset `c:"bgw_name"`
		BgwType  Offset `c:"bgw_type"`
		BgwFlags Offset `c:"bgw_flags"`
	} `c:"BackgroundWorker"`

	ErrorContextCallback struct {
		Size     Offset
		Previous Offset `c:"previous"`
		Callback Offset `c:"callback"`
		Arg      Offset `c:"arg"`
	} `c:"ErrorContextCallback"`

	// SPICallbackArg is the argument of _SPI_error_callback.
	SPICallbackArg struct {
		Size  Offset
		Query Offset `c:"query"`
		Mode  Offset `c:"mode"`
	} `c:"SPICallbackArg" src:"src/backend/executor/spi.c"`

	FmgrInfo struct {
		Size    Offset
		FnExtra Offset `c:"fn_extra"`
	} `c:"FmgrInfo"`

	// SQLFunctionCache begins with the function's name until 17, and with the address of a SQLFunctionHashEntry since 18.
	SQLFunctionCache struct {
		Size            Offset
		Fname           Offset `c:"fname"`
		Func            Offset `c:"func"`
		ErrorQueryIndex Offset `c:"error_query_index"`
	} `c:"SQLFunctionCache" src:"src/backend/executor/functions.c"`

	SQLFunctionHashEntry struct {
		Size  Offset
		Fname Offset `c:"fname"`
	} `c:"SQLFunctionHashEntry" src:"src/backend/executor/functions.c"`

	// InlineErrorCallbackArg is the argument of sql_inline_error_callback.
	InlineErrorCallbackArg struct {
		Size    Offset
		Proname Offset `c:"proname"`
	} `c:"inline_error_callback_arg" src:"src/backend/optimizer/util/clauses.c"`

	// XactLockTableWaitInfo is the argument of XactLockTableWaitErrorCb.
	XactLockTableWaitInfo struct {
		Size Offset
		Oper Offset `c:"oper"`
		Rel  Offset `c:"rel"`
		Ctid Offset `c:"ctid"`
	} `c:"XactLockTableWaitInfo" src:"src/backend/storage/lmgr/lmgr.c"`

	ItemPointerData struct {
		Size    Offset
		BiHi    Offset `c:"ip_blkid.bi_hi"`
		BiLo    Offset `c:"ip_blkid.bi_lo"`
		IpPosid Offset `c:"ip_posid"`
	} `c:"ItemPointerData"`

	// PgEnc2name is an entry of the table of encodings, to which the variable DatabaseEncoding points.
	PgEnc2name struct {
		Size     Offset
		Encoding Offset `c:"encoding"`
	} `c:"pg_enc2name"`

	PLpgSQLExecstate struct {
		Size    Offset
		Func    Offset `c:"func"`
		ErrStmt Offset `c:"err_stmt"`
		ErrVar  Offset `c:"err_var"`
		ErrText Offset `c:"err_text"`
	} `c:"PLpgSQL_execstate"`

	PLpgSQLFunction struct {
		Size        Offset
		FnSignature Offset `c:"fn_signature"`
		FnOid       Offset `c:"fn_oid"`
	} `c:"PLpgSQL_function"`

	PLpgSQLStmt struct {
		Size    Offset
		CmdType Offset `c:"cmd_type"`
		Lineno  Offset `c:"lineno"`
	} `c:"PLpgSQL_stmt_block"`

	PLpgSQLStmtExit struct {
		Size   Offset
		IsExit Offset `c:"is_exit"`
	} `c:"PLpgSQL_stmt_exit"`

	PLpgSQLStmtGetdiag struct {
		Size      Offset
		IsStacked Offset `c:"is_stacked"`
	} `c:"PLpgSQL_stmt_getdiag"`

	PLpgSQLStmtFetch struct {
		Size   Offset
		IsMove Offset `c:"is_move"`
	} `c:"PLpgSQL_stmt_fetch"`

	PLpgSQLStmtCall struct {
		Size   Offset
		IsCall Offset `c:"is_call"`
	} `c:"PLpgSQL_stmt_call"`

	PLpgSQLVariable struct {
		Size   Offset
		Lineno Offset `c:"lineno"`
	} `c:"PLpgSQL_variable"`

	PLpgSQLExpr struct {
		Size  Offset
		Query Offset `c:"query"`
	} `c:"PLpgSQL_expr"`

	PLyExecutionContext struct {
		Size     Offset
		CurrProc Offset `c:"curr_proc"`
	} `c:"PLyExecutionContext" src:"src/pl/plpython/plpython.h src/pl/plpython/plpy_main.h"`

	PLyProcedure struct {
		Size        Offset
		Proname     Offset `c:"proname"`
		IsProcedure Offset `c:"is_procedure"`
	} `c:"PLyProcedure" src:"src/pl/plpython/plpython.h src/pl/plpython/plpy_main.h"`

	PortalData struct {
		Size          Offset
		Name          Offset `c:"name"`
		PortalContext Offset `c:"portalContext"`
		SourceText    Offset `c:"sourceText"`
		QueryDesc     Offset `c:"queryDesc"`
		Status        Offset `c:"status"`
		Strategy      Offset `c:"strategy"`
		Stmts         Offset `c:"stmts"`
		CursorOptions Offset `c:"cursorOptions"`
		HoldStore     Offset `c:"holdStore"`
		PortalPos     Offset `c:"portalPos"`
		AtEnd         Offset `c:"atEnd"`
	} `c:"PortalData"`

	QueryDesc struct {
		Size              Offset
		Operation         Offset `c:"operation"`
		Plannedstmt       Offset `c:"plannedstmt"`
		SourceText        Offset `c:"sourceText"`
		Estate            Offset `c:"estate"`
		Planstate         Offset `c:"planstate"`
		InstrumentOptions Offset `c:"instrument_options"`
		AlreadyExecuted   Offset `c:"already_executed"`
	} `c:"QueryDesc"`

	MemoryContextData struct {
		Size         Offset
		MemAllocated Offset `c:"mem_allocated"`
		Methods      Offset `c:"methods"`
		Parent       Offset `c:"parent"`
		Firstchild   Offset `c:"firstchild"`
		Prevchild    Offset `c:"prevchild"`
		Nextchild    Offset `c:"nextchild"`
		Name         Offset `c:"name"`
		Ident        Offset `c:"ident"`
	} `c:"MemoryContextData"`

	AllocSetContext struct {
		Size     Offset
		Header   Offset `c:"header"`
		Blocks   Offset `c:"blocks"`
		Freelist Offset `c:"freelist"`
		// InitBlockSize follows the array of free lists.
		InitBlockSize Offset `c:"initBlockSize"`
	} `c:"AllocSetContext" src:"src/backend/utils/mmgr/aset.c"`

	// AllocChunkData is the header of a chunk until 15, and MemoryChunk since 16.
	AllocChunkData struct {
		Size Offset
		Aset Offset `c:"aset"`
	} `c:"AllocChunkData" src:"src/backend/utils/mmgr/aset.c"`

	MemoryChunk struct {
		Size Offset
	} `c:"MemoryChunk" src:"src/backend/utils/mmgr/aset.c"`

	AllocBlockData struct {
		Size    Offset
		Aset    Offset `c:"aset"`
		Prev    Offset `c:"prev"`
		Next    Offset `c:"next"`
		Freeptr Offset `c:"freeptr"`
		Endptr  Offset `c:"endptr"`
	} `c:"AllocBlockData" src:"src/backend/utils/mmgr/aset.c"`

	GenerationContext struct {
		Size   Offset
		Blocks Offset `c:"blocks"`
	} `c:"GenerationContext" src:"src/backend/utils/mmgr/generation.c"`

	GenerationBlock struct {
		Size    Offset
		Node    Offset `c:"node"`
		Context Offset `c:"context"`
		Blksize Offset `c:"blksize"`
		Nchunks Offset `c:"nchunks"`
		Nfree   Offset `c:"nfree"`
		Freeptr Offset `c:"freeptr"`
		Endptr  Offset `c:"endptr"`
	} `c:"GenerationBlock" src:"src/backend/utils/mmgr/generation.c"`

	SlabContext struct {
		Size           Offset
		ChunkSize      Offset `c:"chunkSize"`
		FullChunkSize  Offset `c:"fullChunkSize"`
		BlockSize      Offset `c:"blockSize"`
		HeaderSize     Offset `c:"headerSize"`
		ChunksPerBlock Offset `c:"chunksPerBlock"`
		Emptyblocks    Offset `c:"emptyblocks.count"`
		Blocklist      Offset `c:"blocklist|freelist"`
	} `c:"SlabContext" src:"src/backend/utils/mmgr/slab.c"`

	SlabBlock struct {
		Size  Offset
		Slab  Offset `c:"slab"`
		Nfree Offset `c:"nfree"`
		Node  Offset `c:"node"`
	} `c:"SlabBlock" src:"src/backend/utils/mmgr/slab.c"`

	BumpContext struct {
		Size   Offset
		Blocks Offset `c:"blocks"`
	} `c:"BumpContext" src:"src/backend/utils/mmgr/bump.c"`

	BumpBlock struct {
		Size    Offset
		Node    Offset `c:"node"`
		Freeptr Offset `c:"freeptr"`
		Endptr  Offset `c:"endptr"`
	} `c:"BumpBlock" src:"src/backend/utils/mmgr/bump.c"`

	CopyFromStateData struct {
		Size        Offset
		CurRelname  Offset `c:"cur_relname"`
		CurLineno   Offset `c:"cur_lineno"`
		CurAttname  Offset `c:"cur_attname"`
		RelnameOnly Offset `c:"relname_only"`
	} `c:"CopyFromStateData"`

	LVRelState struct {
		Size         Offset
		Relnamespace Offset `c:"relnamespace"`
		Relname      Offset `c:"relname"`
		Indname      Offset `c:"indname"`
		Blkno        Offset `c:"blkno"`
		Offnum       Offset `c:"offnum"`
		Phase        Offset `c:"phase"`
	} `c:"LVRelState" src:"src/backend/access/heap/vacuumlazy.c"`

	ParallelVacuumState struct {
		Size         Offset
		Relnamespace Offset `c:"relnamespace"`
		Relname      Offset `c:"relname"`
		Indname      Offset `c:"indname"`
		Status       Offset `c:"status"`
	} `c:"ParallelVacuumState" src:"src/backend/commands/vacuumparallel.c"`

	ProcSignalSlot struct {
		Size                 Offset
		PssPid               Offset `c:"pss_pid"`
		PssSignalFlags       Offset `c:"pss_signalFlags"`
		PssBarrierGeneration Offset `c:"pss_barrierGeneration"`
	} `c:"ProcSignalSlot" src:"src/backend/storage/ipc/procsignal.c"`

	ProcSignalHeader struct {
		Size                 Offset
		PshBarrierGeneration Offset `c:"psh_barrierGeneration"`
		PshSlot              Offset `c:"psh_slot"`
	} `c:"ProcSignalHeader" src:"src/backend/storage/ipc/procsignal.c"`

	PGShmemHeader struct {
		Size       Offset
		Magic      Offset `c:"magic"`
		CreatorPID Offset `c:"creatorPID"`
		Totalsize  Offset `c:"totalsize"`
		Freeoffset Offset `c:"freeoffset"`
	} `c:"PGShmemHeader"`

	ShmemIndexEnt struct {
		Size        Offset
		Key         Offset `c:"key"`
		Location    Offset `c:"location"`
		SegmentSize Offset `c:"size"`
	} `c:"ShmemIndexEnt"`

	HASHHDR struct {
		Size      Offset
		Dsize     Offset `c:"dsize"`
		Nsegs     Offset `c:"nsegs"`
		MaxBucket Offset `c:"max_bucket"`
		HighMask  Offset `c:"high_mask"`
		LowMask   Offset `c:"low_mask"`
		Keysize   Offset `c:"keysize"`
		Entrysize Offset `c:"entrysize"`
	} `c:"HASHHDR" src:"src/backend/utils/hash/dynahash.c"`

	HASHELEMENT struct {
		Size      Offset
		Link      Offset `c:"link"`
		Hashvalue Offset `c:"hashvalue"`
	} `c:"HASHELEMENT"`

	PlannedStmt struct {
		Size            Offset
		CommandType     Offset `c:"commandType"`
		QueryId         Offset `c:"queryId"`
		PlanTree        Offset `c:"planTree"`
		Rtable          Offset `c:"rtable"`
		Subplans        Offset `c:"subplans"`
		UtilityStmt     Offset `c:"utilityStmt"`
		ResultRelations Offset `c:"resultRelations"`
	} `c:"PlannedStmt"`

	Plan struct {
		Size          Offset
		StartupCost   Offset `c:"startup_cost"`
		TotalCost     Offset `c:"total_cost"`
		PlanRows      Offset `c:"plan_rows"`
		PlanWidth     Offset `c:"plan_width"`
		ParallelAware Offset `c:"parallel_aware"`
		AsyncCapable  Offset `c:"async_capable"`
		PlanNodeId    Offset `c:"plan_node_id"`
		Targetlist    Offset `c:"targetlist"`
		Qual          Offset `c:"qual"`
		Lefttree      Offset `c:"lefttree"`
		Righttree     Offset `c:"righttree"`
		InitPlan      Offset `c:"initPlan"`
		DisabledNodes Offset `c:"disabled_nodes"`
	} `c:"Plan"`

	Scan struct {
		Size      Offset
		Scanrelid Offset `c:"scanrelid"`
	} `c:"Scan"`

	IndexScan struct {
		Size          Offset
		Indexid       Offset `c:"indexid"`
		Indexorderdir Offset `c:"indexorderdir"`
	} `c:"IndexScan"`

	IndexOnlyScan struct {
		Size          Offset
		Indexid       Offset `c:"indexid"`
		Indexorderdir Offset `c:"indexorderdir"`
	} `c:"IndexOnlyScan"`

	BitmapIndexScan struct {
		Size    Offset
		Indexid Offset `c:"indexid"`
	} `c:"BitmapIndexScan"`

	Join struct {
		Size        Offset
		Jointype    Offset `c:"jointype"`
		InnerUnique Offset `c:"inner_unique"`
	} `c:"Join"`

	Agg struct {
		Size        Offset
		Aggstrategy Offset `c:"aggstrategy"`
		Aggsplit    Offset `c:"aggsplit"`
		NumCols     Offset `c:"numCols"`
	} `c:"Agg"`

	SetOp struct {
		Size     Offset
		Cmd      Offset `c:"cmd"`
		Strategy Offset `c:"strategy"`
	} `c:"SetOp"`

	ModifyTable struct {
		Size             Offset
		Operation        Offset `c:"operation"`
		NominalRelation  Offset `c:"nominalRelation"`
		RootRelation     Offset `c:"rootRelation"`
		ResultRelations  Offset `c:"resultRelations"`
		OnConflictAction Offset `c:"onConflictAction"`
	} `c:"ModifyTable"`

	Gather struct {
		Size       Offset
		NumWorkers Offset `c:"num_workers"`
		SingleCopy Offset `c:"single_copy"`
	} `c:"Gather"`

	GatherMerge struct {
		Size       Offset
		NumWorkers Offset `c:"num_workers"`
	} `c:"GatherMerge"`

	Sort struct {
		Size    Offset
		NumCols Offset `c:"numCols"`
	} `c:"Sort"`

	IncrementalSort struct {
		Size           Offset
		NPresortedCols Offset `c:"nPresortedCols"`
	} `c:"IncrementalSort"`

	CteScan struct {
		Size      Offset
		CtePlanId Offset `c:"ctePlanId"`
	} `c:"CteScan"`

	SubqueryScan struct {
		Size    Offset
		Subplan Offset `c:"subplan"`
	} `c:"SubqueryScan"`

	FunctionScan struct {
		Size      Offset
		Functions Offset `c:"functions"`
	} `c:"FunctionScan"`

	Append struct {
		Size        Offset
		Apprelids   Offset `c:"apprelids"`
		Appendplans Offset `c:"appendplans"`
	} `c:"Append"`

	MergeAppend struct {
		Size       Offset
		Apprelids  Offset `c:"apprelids"`
		Mergeplans Offset `c:"mergeplans"`
	} `c:"MergeAppend"`

	ForeignScan struct {
		Size         Offset
		Operation    Offset `c:"operation"`
		FsServer     Offset `c:"fs_server"`
		FsRelids     Offset `c:"fs_relids"`
		FsBaseRelids Offset `c:"fs_base_relids"`
	} `c:"ForeignScan"`

	CustomScan struct {
		Size    Offset
		Methods Offset `c:"methods"`
	} `c:"CustomScan"`

	WindowAgg struct {
		Size    Offset
		Winname Offset `c:"winname"`
	} `c:"WindowAgg"`

	SubPlan struct {
		Size         Offset
		SubLinkType  Offset `c:"subLinkType"`
		PlanId       Offset `c:"plan_id"`
		PlanName     Offset `c:"plan_name"`
		UseHashTable Offset `c:"useHashTable"`
		SetParam     Offset `c:"setParam"`
		ParParam     Offset `c:"parParam"`
	} `c:"SubPlan"`

	RangeTblEntry struct {
		Size    Offset
		Rtekind Offset `c:"rtekind"`
		Relid   Offset `c:"relid"`
		Relkind Offset `c:"relkind"`
		Alias   Offset `c:"alias"`
		Eref    Offset `c:"eref"`
		Ctename Offset `c:"ctename"`
		Enrname Offset `c:"enrname"`
	} `c:"RangeTblEntry"`

	Alias struct {
		Size      Offset
		Aliasname Offset `c:"aliasname"`
	} `c:"Alias"`

	List struct {
		Size     Offset
		Type     Offset `c:"type"`
		Length   Offset `c:"length"`
		Elements Offset `c:"elements"`
	} `c:"List"`

	Bitmapset struct {
		Size   Offset
		Nwords Offset `c:"nwords"`
		Words  Offset `c:"words"`
	} `c:"Bitmapset"`

	EState struct {
		Size              Offset
		EsRangeTable      Offset `c:"es_range_table"`
		EsRangeTableSize  Offset `c:"es_range_table_size"`
		EsRelations       Offset `c:"es_relations"`
		EsPlannedstmt     Offset `c:"es_plannedstmt"`
		EsSourceText      Offset `c:"es_sourceText"`
		EsQueryCxt        Offset `c:"es_query_cxt"`
		EsProcessed       Offset `c:"es_processed"`
		EsInstrument      Offset `c:"es_instrument"`
		EsFinished        Offset `c:"es_finished"`
		EsSubplanstates   Offset `c:"es_subplanstates"`
		EsAuxmodifytables Offset `c:"es_auxmodifytables"`
		EsUseParallelMode Offset `c:"es_use_parallel_mode"`
		EsEpqActive       Offset `c:"es_epq_active"`
		EsTopEflags       Offset `c:"es_top_eflags"`
		EsDirection       Offset `c:"es_direction"`
		EsPartPruneStates Offset `c:"es_part_prune_states"`
	} `c:"EState"`

	PlanState struct {
		Size             Offset
		Plan             Offset `c:"plan"`
		State            Offset `c:"state"`
		ExecProcNode     Offset `c:"ExecProcNode"`
		ExecProcNodeReal Offset `c:"ExecProcNodeReal"`
		Instrument       Offset `c:"instrument"`
		WorkerInstrument Offset `c:"worker_instrument"`
		Lefttree         Offset `c:"lefttree"`
		Righttree        Offset `c:"righttree"`
		InitPlan         Offset `c:"initPlan"`
		SubPlan          Offset `c:"subPlan"`
	} `c:"PlanState"`

	ScanState struct {
		Size              Offset
		SsCurrentRelation Offset `c:"ss_currentRelation"`
		SsCurrentScanDesc Offset `c:"ss_currentScanDesc"`
	} `c:"ScanState"`

	SubqueryScanState struct {
		Size    Offset
		Subplan Offset `c:"subplan"`
	} `c:"SubqueryScanState"`

	AppendState struct {
		Size            Offset
		Appendplans     Offset `c:"appendplans"`
		AsNplans        Offset `c:"as_nplans"`
		AsWhichplan     Offset `c:"as_whichplan"`
		AsValidSubplans Offset `c:"as_valid_subplans"`
		AsBegun         Offset `c:"as_begun"`
	} `c:"AppendState"`

	MergeAppendState struct {
		Size       Offset
		Mergeplans Offset `c:"mergeplans"`
		MsNplans   Offset `c:"ms_nplans"`
	} `c:"MergeAppendState"`

	BitmapAndState struct {
		Size        Offset
		Bitmapplans Offset `c:"bitmapplans"`
		Nplans      Offset `c:"nplans"`
	} `c:"BitmapAndState"`

	BitmapOrState struct {
		Size        Offset
		Bitmapplans Offset `c:"bitmapplans"`
		Nplans      Offset `c:"nplans"`
	} `c:"BitmapOrState"`

	ModifyTableState struct {
		Size              Offset
		Operation         Offset `c:"operation"`
		MtDone            Offset `c:"mt_done"`
		MtNrels           Offset `c:"mt_nrels"`
		ResultRelInfo     Offset `c:"resultRelInfo"`
		RootResultRelInfo Offset `c:"rootResultRelInfo"`
		MtLastResultIndex Offset `c:"mt_lastResultIndex"`
		FireBSTriggers    Offset `c:"fireBSTriggers"`
		MtMergeInserted   Offset `c:"mt_merge_inserted"`
		MtMergeUpdated    Offset `c:"mt_merge_updated"`
		MtMergeDeleted    Offset `c:"mt_merge_deleted"`
	} `c:"ModifyTableState"`

	ResultRelInfo struct {
		Size              Offset
		RiRangeTableIndex Offset `c:"ri_RangeTableIndex"`
		RiRelationDesc    Offset `c:"ri_RelationDesc"`
		RiNumIndices      Offset `c:"ri_NumIndices"`
		RiTrigInstrument  Offset `c:"ri_TrigInstrument"`
	} `c:"ResultRelInfo"`

	IndexScanState struct {
		Size            Offset
		IssRelationDesc Offset `c:"iss_RelationDesc"`
		IssScanDesc     Offset `c:"iss_ScanDesc"`
	} `c:"IndexScanState"`

	IndexOnlyScanState struct {
		Size             Offset
		IossRelationDesc Offset `c:"ioss_RelationDesc"`
		IossScanDesc     Offset `c:"ioss_ScanDesc"`
	} `c:"IndexOnlyScanState"`

	BitmapIndexScanState struct {
		Size             Offset
		BissRelationDesc Offset `c:"biss_RelationDesc"`
		BissScanDesc     Offset `c:"biss_ScanDesc"`
	} `c:"BitmapIndexScanState"`

	BitmapHeapScanState struct {
		Size        Offset
		Tbm         Offset `c:"tbm"`
		ExactPages  Offset `c:"exact_pages|stats.exact_pages"`
		LossyPages  Offset `c:"lossy_pages|stats.lossy_pages"`
		Initialized Offset `c:"initialized"`
		Pstate      Offset `c:"pstate"`
	} `c:"BitmapHeapScanState"`

	SortState struct {
		Size           Offset
		Bounded        Offset `c:"bounded"`
		Bound          Offset `c:"bound"`
		SortDone       Offset `c:"sort_Done"`
		Tuplesortstate Offset `c:"tuplesortstate"`
	} `c:"SortState"`

	IncrementalSortState struct {
		Size            Offset
		ExecutionStatus Offset `c:"execution_status"`
		FullsortState   Offset `c:"fullsort_state"`
		PrefixsortState Offset `c:"prefixsort_state"`
		IncsortInfo     Offset `c:"incsort_info"`
	} `c:"IncrementalSortState"`

	HashJoinState struct {
		Size            Offset
		HjHashTable     Offset `c:"hj_HashTable"`
		HjCurHashValue  Offset `c:"hj_CurHashValue"`
		HjCurBucketNo   Offset `c:"hj_CurBucketNo"`
		HjJoinState     Offset `c:"hj_JoinState"`
		HjOuterNotEmpty Offset `c:"hj_OuterNotEmpty"`
	} `c:"HashJoinState"`

	HashState struct {
		Size          Offset
		Hashtable     Offset `c:"hashtable"`
		ParallelState Offset `c:"parallel_state"`
	} `c:"HashState"`

	AggState struct {
		Size               Offset
		Aggstrategy        Offset `c:"aggstrategy"`
		CurrentPhase       Offset `c:"current_phase"`
		Numaggs            Offset `c:"numaggs"`
		AggDone            Offset `c:"agg_done"`
		InputDone          Offset `c:"input_done"`
		TableFilled        Offset `c:"table_filled"`
		HashSpillMode      Offset `c:"hash_spill_mode"`
		HashEverSpilled    Offset `c:"hash_ever_spilled"`
		HashMemPeak        Offset `c:"hash_mem_peak"`
		HashNgroupsCurrent Offset `c:"hash_ngroups_current"`
		HashDiskUsed       Offset `c:"hash_disk_used"`
		HashBatchesUsed    Offset `c:"hash_batches_used"`
		HashNgroupsLimit   Offset `c:"hash_ngroups_limit"`
		HashMemLimit       Offset `c:"hash_mem_limit"`
		HashBatches        Offset `c:"hash_batches"`
		HashMetacxt        Offset `c:"hash_metacxt"`
		HashTablecxt       Offset `c:"hash_tablecxt"`
		NumHashes          Offset `c:"num_hashes"`
		Perhash            Offset `c:"perhash"`
	} `c:"AggState"`

	GatherState struct {
		Size              Offset
		Initialized       Offset `c:"initialized"`
		NeedToScanLocally Offset `c:"need_to_scan_locally"`
		Pei               Offset `c:"pei"`
		NworkersLaunched  Offset `c:"nworkers_launched"`
		Nreaders          Offset `c:"nreaders"`
	} `c:"GatherState"`

	GatherMergeState struct {
		Size              Offset
		Initialized       Offset `c:"initialized"`
		NeedToScanLocally Offset `c:"need_to_scan_locally"`
		Pei               Offset `c:"pei"`
		NworkersLaunched  Offset `c:"nworkers_launched"`
		Nreaders          Offset `c:"nreaders"`
	} `c:"GatherMergeState"`

	CteScanState struct {
		Size         Offset
		Cteplanstate Offset `c:"cteplanstate"`
		Leader       Offset `c:"leader"`
		EofCte       Offset `c:"eof_cte"`
		CteTable     Offset `c:"cte_table"`
	} `c:"CteScanState"`

	RecursiveUnionState struct {
		Size              Offset
		Recursing         Offset `c:"recursing"`
		IntermediateEmpty Offset `c:"intermediate_empty"`
		WorkingTable      Offset `c:"working_table"`
	} `c:"RecursiveUnionState"`

	LimitState struct {
		Size     Offset
		Offset   Offset `c:"offset"`
		Count    Offset `c:"count"`
		NoCount  Offset `c:"noCount"`
		Lstate   Offset `c:"lstate"`
		Position Offset `c:"position"`
	} `c:"LimitState"`

	MaterialState struct {
		Size            Offset
		EofUnderlying   Offset `c:"eof_underlying"`
		Tuplestorestate Offset `c:"tuplestorestate"`
	} `c:"MaterialState"`

	WindowAggState struct {
		Size             Offset
		Currentpos       Offset `c:"currentpos"`
		SpooledRows      Offset `c:"spooled_rows"`
		PartitionSpooled Offset `c:"partition_spooled"`
		AllDone          Offset `c:"all_done"`
	} `c:"WindowAggState"`

	MemoizeState struct {
		Size     Offset
		MemUsed  Offset `c:"mem_used"`
		MemLimit Offset `c:"mem_limit"`
		Stats    Offset `c:"stats"`
		Mstatus  Offset `c:"mstatus"`
	} `c:"MemoizeState"`

	SetOpState struct {
		Size        Offset
		SetopDone   Offset `c:"setop_done"`
		TableFilled Offset `c:"table_filled"`
		NumOutput   Offset `c:"numOutput"`
	} `c:"SetOpState"`

	SubPlanState struct {
		Size      Offset
		Subplan   Offset `c:"subplan"`
		Planstate Offset `c:"planstate"`
		CurTuple  Offset `c:"curTuple"`
		Hashtable Offset `c:"hashtable"`
	} `c:"SubPlanState"`

	CustomScanState struct {
		Size     Offset
		CustomPs Offset `c:"custom_ps"`
		Methods  Offset `c:"methods"`
	} `c:"CustomScanState"`

	MergeJoinState struct {
		Size        Offset
		MjJoinState Offset `c:"mj_JoinState"`
	} `c:"MergeJoinState"`

	// Instrumentation belongs to a node. From 19 on it is NodeInstrumentation, which begins with an Instrumentation.
	Instrumentation struct {
		Size       Offset
		NeedTimer  Offset `c:"need_timer"`
		Running    Offset `c:"running"`
		Starttime  Offset `c:"starttime"`
		Counter    Offset `c:"counter"`
		Firsttuple Offset `c:"firsttuple"`
		Tuplecount Offset `c:"tuplecount"`
		Startup    Offset `c:"startup"`
		Total      Offset `c:"total"`
		Ntuples    Offset `c:"ntuples"`
		Ntuples2   Offset `c:"ntuples2"`
		Nloops     Offset `c:"nloops"`
		Nfiltered1 Offset `c:"nfiltered1"`
		Nfiltered2 Offset `c:"nfiltered2"`
	} `c:"NodeInstrumentation|Instrumentation"`

	ParallelExecutorInfo struct {
		Size      Offset
		Planstate Offset `c:"planstate"`
		Pcxt      Offset `c:"pcxt"`
		Finished  Offset `c:"finished"`
	} `c:"ParallelExecutorInfo"`

	TableScanDescData struct {
		Size       Offset
		RsRd       Offset `c:"rs_rd"`
		RsFlags    Offset `c:"rs_flags"`
		RsParallel Offset `c:"rs_parallel"`
	} `c:"TableScanDescData"`

	ParallelTableScanDescData struct {
		Size        Offset
		PhsSyncscan Offset `c:"phs_syncscan"`
	} `c:"ParallelTableScanDescData"`

	ParallelBlockTableScanDescData struct {
		Size          Offset
		PhsNblocks    Offset `c:"phs_nblocks"`
		PhsStartblock Offset `c:"phs_startblock"`
		PhsNallocated Offset `c:"phs_nallocated"`
	} `c:"ParallelBlockTableScanDescData"`

	IndexScanDescData struct {
		Size          Offset
		HeapRelation  Offset `c:"heapRelation"`
		IndexRelation Offset `c:"indexRelation"`
		NumberOfKeys  Offset `c:"numberOfKeys"`
		XsHeaptid     Offset `c:"xs_heaptid"`
		XsRecheck     Offset `c:"xs_recheck"`
		Instrument    Offset `c:"instrument"`
	} `c:"IndexScanDescData"`

	RelationData struct {
		Size  Offset
		RdRel Offset `c:"rd_rel"`
		RdId  Offset `c:"rd_id"`
	} `c:"RelationData"`

	FormDataPgClass struct {
		Size         Offset
		Oid          Offset `c:"oid"`
		Relname      Offset `c:"relname"`
		Relnamespace Offset `c:"relnamespace"`
		Relam        Offset `c:"relam"`
		Relkind      Offset `c:"relkind"`
		Relpages     Offset `c:"relpages"`
		Reltuples    Offset `c:"reltuples"`
	} `c:"FormData_pg_class"`

	HeapScanDescData struct {
		Size            Offset
		RsNblocks       Offset `c:"rs_nblocks"`
		RsStartblock    Offset `c:"rs_startblock"`
		RsNumblocks     Offset `c:"rs_numblocks"`
		RsInited        Offset `c:"rs_inited"`
		RsCblock        Offset `c:"rs_cblock"`
		RsNtuples       Offset `c:"rs_ntuples"`
		RsCindex        Offset `c:"rs_cindex"`
		RsDir           Offset `c:"rs_dir"`
		RsPrefetchBlock Offset `c:"rs_prefetch_block"`
	} `c:"HeapScanDescData"`

	HashJoinTableData struct {
		Size             Offset
		Nbuckets         Offset `c:"nbuckets"`
		Log2Nbuckets     Offset `c:"log2_nbuckets"`
		NbucketsOriginal Offset `c:"nbuckets_original"`
		Nbatch           Offset `c:"nbatch"`
		Curbatch         Offset `c:"curbatch"`
		NbatchOriginal   Offset `c:"nbatch_original"`
		NbatchOutstart   Offset `c:"nbatch_outstart"`
		TotalTuples      Offset `c:"totalTuples"`
		PartialTuples    Offset `c:"partialTuples"`
		SkewTuples       Offset `c:"skewTuples"`
		SpaceUsed        Offset `c:"spaceUsed"`
		SpaceAllowed     Offset `c:"spaceAllowed"`
		SpacePeak        Offset `c:"spacePeak"`
		ParallelState    Offset `c:"parallel_state"`
		InnerBatchFile   Offset `c:"innerBatchFile"`
		OuterBatchFile   Offset `c:"outerBatchFile"`
	} `c:"HashJoinTableData"`

	ParallelHashJoinState struct {
		Size          Offset
		Nbatch        Offset `c:"nbatch"`
		Nbuckets      Offset `c:"nbuckets"`
		Nparticipants Offset `c:"nparticipants"`
		SpaceAllowed  Offset `c:"space_allowed"`
		TotalTuples   Offset `c:"total_tuples"`
		BuildBarrier  Offset `c:"build_barrier"`
	} `c:"ParallelHashJoinState"`

	Tuplesortstate struct {
		Size           Offset
		Status         Offset `c:"status"`
		NKeys          Offset `c:"nKeys"`
		Bounded        Offset `c:"bounded"`
		BoundUsed      Offset `c:"boundUsed"`
		Bound          Offset `c:"bound"`
		AvailMem       Offset `c:"availMem"`
		AllowedMem     Offset `c:"allowedMem"`
		MaxSpace       Offset `c:"maxSpace"`
		IsMaxSpaceDisk Offset `c:"isMaxSpaceDisk"`
		MaxSpaceStatus Offset `c:"maxSpaceStatus"`
		Tapeset        Offset `c:"tapeset"`
		Memtupcount    Offset `c:"memtupcount"`
		Memtupsize     Offset `c:"memtupsize"`
		CurrentRun     Offset `c:"currentRun"`
		NInputRuns     Offset `c:"nInputRuns"`
		NOutputRuns    Offset `c:"nOutputRuns"`
		TupleMem       Offset `c:"tupleMem"`
	} `c:"Tuplesortstate" src:"src/backend/utils/sort/tuplesort.c"`

	LogicalTapeSet struct {
		Size             Offset
		NBlocksAllocated Offset `c:"nBlocksAllocated"`
		NBlocksWritten   Offset `c:"nBlocksWritten"`
		NHoleBlocks      Offset `c:"nHoleBlocks"`
		NFreeBlocks      Offset `c:"nFreeBlocks"`
	} `c:"LogicalTapeSet" src:"src/backend/utils/sort/logtape.c"`

	TIDBitmap struct {
		Size       Offset
		Type       Offset `c:"type"`
		Nentries   Offset `c:"nentries"`
		Maxentries Offset `c:"maxentries"`
		Npages     Offset `c:"npages"`
		Nchunks    Offset `c:"nchunks"`
		Iterating  Offset `c:"iterating"`
		Status     Offset `c:"status"`
	} `c:"TIDBitmap" src:"src/backend/nodes/tidbitmap.c"`

	ParallelContext struct {
		Size             Offset
		Nworkers         Offset `c:"nworkers"`
		NworkersLaunched Offset `c:"nworkers_launched"`
		Worker           Offset `c:"worker"`
	} `c:"ParallelContext"`

	// Tags has the node tags (enum NodeTag).
	Tags struct {
		Result                   Offset `c:"T_Result"`
		ProjectSet               Offset `c:"T_ProjectSet"`
		ModifyTable              Offset `c:"T_ModifyTable"`
		Append                   Offset `c:"T_Append"`
		MergeAppend              Offset `c:"T_MergeAppend"`
		RecursiveUnion           Offset `c:"T_RecursiveUnion"`
		BitmapAnd                Offset `c:"T_BitmapAnd"`
		BitmapOr                 Offset `c:"T_BitmapOr"`
		SeqScan                  Offset `c:"T_SeqScan"`
		SampleScan               Offset `c:"T_SampleScan"`
		IndexScan                Offset `c:"T_IndexScan"`
		IndexOnlyScan            Offset `c:"T_IndexOnlyScan"`
		BitmapIndexScan          Offset `c:"T_BitmapIndexScan"`
		BitmapHeapScan           Offset `c:"T_BitmapHeapScan"`
		TidScan                  Offset `c:"T_TidScan"`
		TidRangeScan             Offset `c:"T_TidRangeScan"`
		SubqueryScan             Offset `c:"T_SubqueryScan"`
		FunctionScan             Offset `c:"T_FunctionScan"`
		ValuesScan               Offset `c:"T_ValuesScan"`
		TableFuncScan            Offset `c:"T_TableFuncScan"`
		CteScan                  Offset `c:"T_CteScan"`
		NamedTuplestoreScan      Offset `c:"T_NamedTuplestoreScan"`
		WorkTableScan            Offset `c:"T_WorkTableScan"`
		ForeignScan              Offset `c:"T_ForeignScan"`
		CustomScan               Offset `c:"T_CustomScan"`
		NestLoop                 Offset `c:"T_NestLoop"`
		MergeJoin                Offset `c:"T_MergeJoin"`
		HashJoin                 Offset `c:"T_HashJoin"`
		Material                 Offset `c:"T_Material"`
		Memoize                  Offset `c:"T_Memoize"`
		Sort                     Offset `c:"T_Sort"`
		IncrementalSort          Offset `c:"T_IncrementalSort"`
		Group                    Offset `c:"T_Group"`
		Agg                      Offset `c:"T_Agg"`
		WindowAgg                Offset `c:"T_WindowAgg"`
		Unique                   Offset `c:"T_Unique"`
		Gather                   Offset `c:"T_Gather"`
		GatherMerge              Offset `c:"T_GatherMerge"`
		Hash                     Offset `c:"T_Hash"`
		SetOp                    Offset `c:"T_SetOp"`
		LockRows                 Offset `c:"T_LockRows"`
		Limit                    Offset `c:"T_Limit"`
		ResultState              Offset `c:"T_ResultState"`
		ProjectSetState          Offset `c:"T_ProjectSetState"`
		ModifyTableState         Offset `c:"T_ModifyTableState"`
		AppendState              Offset `c:"T_AppendState"`
		MergeAppendState         Offset `c:"T_MergeAppendState"`
		RecursiveUnionState      Offset `c:"T_RecursiveUnionState"`
		BitmapAndState           Offset `c:"T_BitmapAndState"`
		BitmapOrState            Offset `c:"T_BitmapOrState"`
		SeqScanState             Offset `c:"T_SeqScanState"`
		SampleScanState          Offset `c:"T_SampleScanState"`
		IndexScanState           Offset `c:"T_IndexScanState"`
		IndexOnlyScanState       Offset `c:"T_IndexOnlyScanState"`
		BitmapIndexScanState     Offset `c:"T_BitmapIndexScanState"`
		BitmapHeapScanState      Offset `c:"T_BitmapHeapScanState"`
		TidScanState             Offset `c:"T_TidScanState"`
		TidRangeScanState        Offset `c:"T_TidRangeScanState"`
		SubqueryScanState        Offset `c:"T_SubqueryScanState"`
		FunctionScanState        Offset `c:"T_FunctionScanState"`
		ValuesScanState          Offset `c:"T_ValuesScanState"`
		TableFuncScanState       Offset `c:"T_TableFuncScanState"`
		CteScanState             Offset `c:"T_CteScanState"`
		NamedTuplestoreScanState Offset `c:"T_NamedTuplestoreScanState"`
		WorkTableScanState       Offset `c:"T_WorkTableScanState"`
		ForeignScanState         Offset `c:"T_ForeignScanState"`
		CustomScanState          Offset `c:"T_CustomScanState"`
		NestLoopState            Offset `c:"T_NestLoopState"`
		MergeJoinState           Offset `c:"T_MergeJoinState"`
		HashJoinState            Offset `c:"T_HashJoinState"`
		MaterialState            Offset `c:"T_MaterialState"`
		MemoizeState             Offset `c:"T_MemoizeState"`
		SortState                Offset `c:"T_SortState"`
		IncrementalSortState     Offset `c:"T_IncrementalSortState"`
		GroupState               Offset `c:"T_GroupState"`
		AggState                 Offset `c:"T_AggState"`
		WindowAggState           Offset `c:"T_WindowAggState"`
		UniqueState              Offset `c:"T_UniqueState"`
		GatherState              Offset `c:"T_GatherState"`
		GatherMergeState         Offset `c:"T_GatherMergeState"`
		HashState                Offset `c:"T_HashState"`
		SetOpState               Offset `c:"T_SetOpState"`
		LockRowsState            Offset `c:"T_LockRowsState"`
		LimitState               Offset `c:"T_LimitState"`
		PlannedStmt              Offset `c:"T_PlannedStmt"`
		EState                   Offset `c:"T_EState"`
		List                     Offset `c:"T_List"`
		IntList                  Offset `c:"T_IntList"`
		OidList                  Offset `c:"T_OidList"`
		RangeTblEntry            Offset `c:"T_RangeTblEntry"`
		SubPlanState             Offset `c:"T_SubPlanState"`
		SubPlan                  Offset `c:"T_SubPlan"`
		Alias                    Offset `c:"T_Alias"`
		AllocSetContext          Offset `c:"T_AllocSetContext"`
		GenerationContext        Offset `c:"T_GenerationContext"`
		SlabContext              Offset `c:"T_SlabContext"`
		BumpContext              Offset `c:"T_BumpContext"`
		TupleTableSlot           Offset `c:"T_TupleTableSlot"`
		ResultRelInfo            Offset `c:"T_ResultRelInfo"`
		ExprContext              Offset `c:"T_ExprContext"`
	} `enum:"NodeTag"`

	// BackendTypes, BackendStates, StmtTypes and LockTagTypes have names by value. A value without a name is empty.
	BackendTypes, BackendStates, StmtTypes, LockTagTypes []string
}
