//! The cases of google/rdma-unit-test's folder `unit` (Apache License 2.0) at commit 1f368ab. Each of them is either
//! named as the source of a case here, or listed as left out with a reason. The folders `traffic`
//! and `random_walk` are covered by the topics of the same kind here, not case by case.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::SECTIONS;

/// The names by file. A name that occurs more than once in a file is prefixed with its fixture.
const NAMES: &[(&str, &str)] = &[
    (
        "access_test",
        "MessagingAccessTest.AllAccess MessagingAccessTest.MissingSrcLocalWrite MissingDstLocalWrite \
         MessagingAccessTest.MissingDstRemoteWrite RdmaAccessTest.AllAccess ZeroBasedAccess \
         RdmaAccessTest.MissingSrcLocalWrite RdmaAccessTest.MissingDstRemoteWrite \
         RdmaAccessTest.MissingDstRemoteRead RdmaAccessTest.MissingDstRemoteAtomic AtomicAccessTest.AllAccess \
         AtomicAccessTest.MissingSrcLocalWrite AtomicAccessTest.MissingDstRemoteWrite \
         AtomicAccessTest.MissingDstRemoteRead AtomicAccessTest.MissingDstRemoteAtomic",
    ),
    ("ah_test", "CreateAndDestroy DestroyWithInvalidHandle"),
    ("async_event_test", "ReadRKeyViolation WriteRKeyViolation"),
    (
        "buffer_test",
        "RegisterZeroByteMr SendZeroByte SendZeroByteFromZeroByteMr SendZeroByteOutsideMr \
         BufferMrTest.ReadExceedFront BufferMrTest.ReadExceedRear BufferMrTest.ReadZeroByte \
         ReadZeroByteOutsideMr ReadZeroByteFromZeroByteMr ReadZeroByteOutsideZeroByteMr \
         ReadZeroByteInvalidRKey BufferMrTest.WriteExceedFront BufferMrTest.WriteExceedRear \
         BufferMrTest.WriteZeroByte WriteZeroByteOutsideMr WriteZeroByteToZeroByteMr \
         WriteZeroByteOutsideZeroByteMr WriteZeroByteInvalidRKey BindExceedFront BindExceedRear \
         BufferMwTest.ReadExceedFront BufferMwTest.ReadExceedRear BufferMwTest.ReadZeroByte \
         ReadZeroByteOutsideMw BufferMwTest.WriteExceedFront BufferMwTest.WriteExceedRear \
         BufferMwTest.WriteZeroByte WriteZeroByteOutsideMw",
    ),
    (
        "comp_channel_test",
        "CreateDestroy DestroyChannelWithCqRef RequestNotificationOnCqWithoutCompChannel \
         RequestNotificationInvalidCq Atomic Bind Write RecvSolicitedNofityAny RecvSolicitedNofitySolicited \
         RecvUnsolicitedNofityAny RecvUnsolicitedNofitySolicited DeleteWithUnacked \
         SameQueueMultipleOutstanding MuxOntoSingleChannel ManyOutstanding DowngradeRequest UpgradeRequest \
         NoSpuriousEvents",
    ),
    (
        "cq_test",
        "Basic DestroyInvalidCq NegativeCqe ZeroCqe MaxCqe WithChannel ShareChannel NegativeCompVector \
         ZeroCompVector LargeCompVector AboveMaxCompVector SendSharedCq RecvSharedCq SendCqOverflow \
         SendSharedCqOverflow RecvCqOverflow RecvSharedCqOverflow",
    ),
    (
        "cq_ex_test",
        "Basic DestroyInvalidCqEx ZeroCqe MaxCqe WithChannel ShareChannel ZeroCompVector LargeCompVector \
         AboveMaxCompVector BasicPollSendCq BasicPollRecvCq BatchPollSendCq BatchPollRecvCq SendCqOverflow \
         RecvCqOverflow",
    ),
    (
        "device_test",
        "GetDeviceList Open OpenMany OpenInAnotherThread OpenInManyThreads QueryDevice ContextTomfoolery \
         MaxAh MaxCqMixed MaxMr MaxMw MaxPd MaxQp MaxSrq",
    ),
    ("hugepage_test", "SendLargeChunk SendMultipleSge"),
    (
        "mr_test",
        "RegisterMemory DeregInvalidMr RemoteWriteWithoutLocalWrite RemoteAtomicWithoutLocalWrite \
         ReregMrChangeAddress ReregMrChangePd ReregMrInvalidPermission ReregMrInvalidBuffer OutstandingRecv \
         ReregMrChangeAccess OutstandingRead OutstandingWrite",
    ),
    (
        "mw_test",
        "Alloc DeallocInvalidMw MwGeneralTest.Bind Read ReadZeroBased BindReadDiffQp BindInvalidMr \
         BindInvalidMw BindInvalidQp MwGeneralTest.DeregMrWhenBound MwType1Test.BindZeroLengthMw \
         MwType1Test.UnsignaledBindError DestroyQpWithType1Bound CrossQpManagement DeallocPdWithOutstandingMw \
         MwType1Test.BindType1WhenQpError MwType2Test.Bind UnsignaledBind MwType2Test.BindZeroLengthMw \
         BindRKeyReuse DistinctRKeys MwType2Test.UnsignaledBindError LocalInvalidate \
         UnsignaledLocalInvalidate UnsignaledLocalInvalidateError Type1BindOnType2 DestroyQpWithType2Bound \
         MwType2Test.DeregMrWhenBound RebindToDifferentQp RebindToDifferentRKey CrossQpInvalidate CrossQpRead \
         MwType2Test.BindType1WhenQpError MwBindAccessTests OnlyReads Rebind Invalidate Dealloc",
    ),
    (
        "pd_test",
        "AllocPd DeleteInvalidPd AllocQpWithInvalidPd AllocMrWithInvalidPd AllocMwWithInvalidPd AhRefCount \
         MrRefCount MwRefCount QpRefCount SrqRefCount MwOnOtherPd MrOnOtherPd MrMwOnOtherPd \
         SendMrOtherPdLocal SendMrOtherPdRemote BasicReadMrOtherPdLocal BasicReadMrOtherPdRemote \
         BasicWriteMrOtherPdLocal BasicWriteMrOtherPdRemote BasicFetchAddMrOtherPdLocal \
         BasicFetchAddMrOtherPdRemote BasicCompSwapMrOtherPdLocal BasicCompSwapMrOtherPdRemote \
         SendAhOnOtherPd ReadMwOtherPd WriteMwOtherPd FetchAddMwOtherPd CompSwapMwOtherPd CreateSrq \
         SrqRecvMrSrqMatch SrqRecvMrSrqMismatch QpSrqPdMismatchWriteWithImm",
    ),
    (
        "qp_test",
        "Create CreateWithInlineMax CreateWithInvalidSendCq CreateWithInvalidRecvCq CreateWithInvalidSrq \
         UnknownType CreateUd ZeroSendWr QueueRefs MaxQpWr MaxSge Modify ModifyInvalidResetToRtrTransition \
         ModifyInvalidInitToRtsTransition ModifyInvalidRtsToRtrTransition ModifyBadResetToInitStateTransition \
         ModifyBadInitToRtrStateTransition ModifyBadRtrToRtsStateTransition UdModify \
         DeallocPdWithOutstandingQp ModifyInvalidQp QueryInvalidQp DestroyInvalidQp DestroyFromReset \
         DestroyFromInit ReuseQp QpIdRollover QpReadWhileTargetEntersRts PostSendReset PostRecvReset \
         PostSendInit PostRecvInit PostSendRtr PostRecvRtr PostSendErr PostSendErrConcurrent \
         PostSendErrDelayed PostRecvErr RtsSendToRtr ModRtsToError OverflowSendWr ResponderNotReadyToReceive",
    ),
    (
        "rc_test",
        "Send SendManyWithOneOutstanding SendEmptySgl UnsignaledSend SendLargeChunk SendInlineData \
         SendExceedMaxInlineData SendInlineDataInvalidOp SendImmData SendWithInvalidate \
         SendWithInvalidateEmptySgl SendWithInvalidateNoBuffer SendWithInvalidateBadRkey \
         SendWithInvalidateType1Rkey SendWithInvalidateWrongQp SendWithTooSmallRecv SendRnr \
         SendRnrInfiniteRetries BadRecvAddr RecvOnDeregisteredRegion RecvPayloadExceedMr RecvBufferExceedMr \
         BadRecvLkey SendInvalidLkey UnsignaledSendError BasicRead BasicReadLargePayload UnsignaledRead \
         QpSigAll Type1MWRead Type2MWRead Type1MWUnbind ReadInvalidLkey UnsignaledReadError ReadInvalidRkey \
         ReadInvalidRKeyAndInvalidLKey ReadUnregisteredRemoteAddress BasicWrite BasicWriteLargePayload \
         UnsignaledWrite WriteInlineData WriteZeroByteWithImmData WriteImmData WriteImmDataInvalidRKey \
         WriteImmDataRnR Type1MWWrite Type2MWWrite WriteInvalidLkey WriteInvalidRkey \
         UnsignaledWriteInvalidRkey WriteInvalidRKeyAndInvalidLKey WriteUnregisteredAddress \
         FetchAddInvalidSize FetchAddNoOp FetchAddSplitSgl UnsignaledFetchAdd FetchAddIncrementBy1 \
         FetchAddLargeIncrement FetchAddUnaligned FetchAddInvalidLKey UnsignaledFetchAddError \
         FetchAddInvalidRKey FetchAddInvalidLKeyAndInvalidRKey FetchAddUnalignedInvalidLKey \
         FetchAddUnalignedInvalidRKey CompareSwapNotEqualNoSwap CompareSwapEqualWithSwap \
         UnsignaledCompareSwap UnsignaledCompareSwapError CompareSwapInvalidLKey CompareSwapInvalidRKey \
         CompareSwapInvalidRKeyAndInvalidLKey CompareSwapInvalidSize CompareSwapUnaligned \
         CompareSwapUnalignedInvalidRKey CompareSwapUnalignedInvalidLKey SgePointerChase RemoteFatalError \
         QueryQpInitialState RemoteRcQpStateTests FullSubmissionQueue FlushErrorPollTogether",
    ),
    (
        "srq_test",
        "Create DestroyInvalidSrq CreateWithInvalidPd CreateQpWithSrq PostWrongApi MaxWr ExceedMaxWr MaxSge \
         ExceedMaxSge DeviceCap ExceedDeviceMaxWr ExceedDeviceMaxSge ModifyMaxWr ExceedMaxWrInfinitChain \
         SrqTest.Send SendManyWithOneOutstanding QpFlush SrqLimit SendRnr SrqRcMultiplexTest.Send \
         WriteWithImmediate MultiThreadedSrqLoopback MultiThreadedMultiQpSingleSrq MultiThreadedMultiSrq",
    ),
    ("stress_test", "Write32B100Qp100kOps"),
    (
        "threaded_test",
        "CreateDestroyAh CreateDestroyCq CreateDestroyCqEx AllocDeallocPd RegDeregMr AllocDeallocMw \
         CreateDestroyQp CreateDestroySrq CreateAh CreateCq CreateCqEx AllocPd RegMr AllocMw CreateQp \
         CreateSrq QpLifecycle QpDestroyTargetWhileActive",
    ),
    (
        "ud_test",
        "Send SendLargerThanMtu SendRnr SendRnrUnsignaledBatch SendTrafficClass SendWithTooSmallRecv \
         SendInvalidAh SendInvalidQpn SendInvalidQKey Read PollMultipleCqe Write FetchAdd CompareSwap \
         MultiThreadedAhLifecycle RcSendToUd UdSendToRc",
    ),
];

/// The cases without a counterpart here, with the reason: names as in [`NAMES`], or a whole file as
/// `cq_ex_test: *`.
const LEFT_OUT: &[(&str, &str)] = &[
    (
        "cq_ex_test: *",
        "extended completion queues are not part of the layer",
    ),
    ("threaded_test: CreateCqEx CreateDestroyCqEx", "the same"),
    (
        "hugepage_test: *",
        "the layer allocates what is registered; huge pages are its own choice",
    ),
    (
        "buffer_test: ReadZeroByteFromZeroByteMr ReadZeroByteOutsideZeroByteMr SendZeroByteFromZeroByteMr \
         WriteZeroByteOutsideZeroByteMr WriteZeroByteToZeroByteMr",
        "regions of no bytes are refused: a-region-of-no-bytes-is-refused",
    ),
    (
        "ah_test: DestroyWithInvalidHandle",
        "they damage the handle of an object, or pass one that is gone: safe code can do neither",
    ),
    (
        "comp_channel_test: RequestNotificationInvalidCq",
        "the same",
    ),
    ("cq_test: DestroyInvalidCq", "the same"),
    ("device_test: ContextTomfoolery", "the same"),
    ("mr_test: DeregInvalidMr", "the same"),
    (
        "mw_test: BindInvalidMr BindInvalidMw BindInvalidQp DeallocInvalidMw",
        "the same",
    ),
    (
        "pd_test: AllocMrWithInvalidPd AllocMwWithInvalidPd AllocQpWithInvalidPd DeleteInvalidPd",
        "the same",
    ),
    (
        "qp_test: DestroyInvalidQp ModifyInvalidQp QueryInvalidQp",
        "the same",
    ),
    (
        "srq_test: CreateWithInvalidPd DestroyInvalidSrq",
        "the same",
    ),
    ("ud_test: SendInvalidAh", "the same"),
    (
        "cq_test: NegativeCqe NegativeCompVector",
        "lengths have no sign: it does not compile",
    ),
    (
        "mr_test: ReregMrChangeAccess ReregMrChangeAddress ReregMrChangePd ReregMrInvalidBuffer \
         ReregMrInvalidPermission",
        "ibv_rereg_mr is not part of the layer",
    ),
    (
        "qp_test: UnknownType",
        "types are an enum of those that there are",
    ),
    (
        "qp_test: PostSendErrConcurrent",
        "one thread has a queue pair at a time, to post or to modify: both take it as `&mut`",
    ),
    (
        "rc_test: RecvBufferExceedMr",
        "whether a receive beyond its region may take a message within is left open there",
    ),
    (
        "cq_test: SendSharedCq RecvSharedCq",
        "their threads fill one queue to its end at the same time; here a queue has one owner",
    ),
    (
        "rc_test: FetchAddInvalidSize CompareSwapInvalidSize",
        "the layer refuses it before the device is asked: a-result-of-another-length-is-refused",
    ),
    (
        "ud_test: Read Write FetchAdd CompareSwap",
        "the layer refuses it before the device is asked: only-sends-are-datagrams",
    ),
    (
        "pd_test: SendAhOnOtherPd",
        "the layer refuses it before the device is asked: an-address-handle-of-another-domain-is-refused",
    ),
    (
        "buffer_test: RegisterZeroByteMr",
        "the layer refuses it before the device is asked: a-region-of-no-bytes-is-refused",
    ),
    (
        "buffer_test: BindExceedFront BindExceedRear",
        "the layer refuses it before the device is asked: a-binding-that-begins-before-its-region-fails, a-binding-that-ends-after-its-region-fails",
    ),
    (
        "mw_test: MwType1Test.UnsignaledBindError MwType2Test.UnsignaledBindError",
        "the layer refuses a range outside of the region; a binding that fails for another cause: an-unsignaled-binding-that-fails-completes",
    ),
    (
        "qp_test: ZeroSendWr",
        "the layer refuses it before the device is asked: parameters-out-of-range-are-refused-by-name",
    ),
    (
        "qp_test: PostSendReset PostRecvReset PostSendInit PostSendRtr",
        "the layer refuses it before the device is asked: each-state-takes-or-refuses-posts-as-specified",
    ),
    (
        "comp_channel_test: ManyOutstanding",
        "1,000 armings raise one event if none is taken; here two: arming-twice-is-arming-once",
    ),
    (
        "mr_test: OutstandingRead OutstandingWrite OutstandingRecv",
        "the layer keeps the memory that a request names until the request has ended: a-region-that-a-request-in-flight-names-is-in-use",
    ),
    ("rc_test: RecvOnDeregisteredRegion", "the same"),
    (
        "comp_channel_test: DestroyChannelWithCqRef",
        "they expect EBUSY; here handles share what they need: a-channel-outlives-its-last-handle-while-a-queue-has-it",
    ),
    (
        "comp_channel_test: DeleteWithUnacked",
        "they expect EBUSY; here an event is acknowledged when it is taken: events-are-acknowledged-by-the-time-their-queue-is-dropped",
    ),
    (
        "qp_test: CreateWithInvalidSendCq CreateWithInvalidRecvCq CreateWithInvalidSrq",
        "they damage the handle of an object: safe code cannot",
    ),
    (
        "srq_test: ExceedMaxWrInfinitChain",
        "a list whose last request is its first: a Vec has no such thing",
    ),
    (
        "cq_test: SendCqOverflow RecvCqOverflow SendSharedCqOverflow RecvSharedCqOverflow",
        "they expect that a queue that overran goes on; here it is dead, as it is specified: a-completion-queue-that-overruns-is-dead-and-takes-its-queue-pairs-along",
    ),
    (
        "rc_test: WriteImmDataInvalidRKey",
        "they expect that the receive ends with a protection error; it was not taken, and is flushed: a-write-with-immediate-and-a-wrong-key-is-refused-at-both-ends",
    ),
    (
        "mw_test: Rebind",
        "it expects that the reader hears of a wrong key; the owner whose binding failed is in ERROR, and answers nothing: a-second-binding-fails-its-owner-and-the-reads-of-another-thread-get-no-answer",
    ),
    (
        "device_test: MaxAh MaxCqMixed MaxMr MaxMw MaxPd MaxQp MaxSrq",
        "they create objects until the device has no more; here 200 of each: objects-come-in-the-numbers-that-are-usual",
    ),
    (
        "qp_test: MaxQpWr",
        "it makes queues as deep as the device says, which takes gigabytes on some; one more than that is refused: parameters-out-of-range-are-refused-by-name",
    ),
    ("srq_test: DeviceCap", "the same, for shared receive queues"),
    (
        "qp_test: QpIdRollover",
        "it creates more queue pairs than the device has numbers for; here 50: queue-pairs-come-and-go-beside-a-busy-one",
    ),
    (
        "rc_test: SendManyWithOneOutstanding",
        "40 queue pairs send 50,000 messages each; here one sends 500: messages-go-to-another-process-and-back",
    ),
    ("srq_test: SendManyWithOneOutstanding", "the same"),
    (
        "srq_test: MultiThreadedSrqLoopback",
        "50 threads post 1,000 receives, and 1,001 messages come then; here two threads post while they come: two-threads-post-while-the-poller-claims",
    ),
    (
        "comp_channel_test: MuxOntoSingleChannel",
        "20 queue pairs with two queues each raise their events on one channel; here one with two: queues-that-share-a-channel-are-told-apart",
    ),
    (
        "stress_test: Write32B100Qp100kOps",
        "100 queue pairs write 100,000 times; here 20 write 4,000 times: many-queue-pairs-write-small-messages",
    ),
    (
        "threaded_test: QpDestroyTargetWhileActive",
        "threads destroy targets for 30 seconds; here one is destroyed: a-peer-that-was-destroyed-is-silent",
    ),
    (
        "qp_test: CreateWithInlineMax",
        "it creates queue pairs with lengths that one network card takes; the limit of the device itself: inline-up-to-the-limit-and-not-beyond",
    ),
    (
        "rc_test: FullSubmissionQueue",
        "20 rounds of lists that fill half of the queue with READs; here one list of messages: a-slot-of-the-send-queue-is-free-when-its-completion-has-been-polled-not-before",
    ),
    (
        "qp_test: QpReadWhileTargetEntersRts",
        "100 READs go out before and after the target enters RTS; here messages, once: a-peer-that-becomes-ready-in-time-gets-what-was-sent-before",
    ),
    (
        "qp_test: PostSendErrDelayed",
        "32 READs are posted three and six seconds after the error; here at once: what-is-posted-in-error-is-flushed-unsignaled-or-not",
    ),
    (
        "rc_test: SendWithInvalidateWrongQp",
        "the window belongs to the sender; here to the receiver's other queue pair: a-message-cannot-take-a-window-of-another-queue-pair-away",
    ),
];

/// Returns each name in [`LEFT_OUT`].
fn left_out() -> Vec<String> {
    let mut out = Vec::new();
    for (entry, _) in LEFT_OUT {
        let Some((file, list)) = entry.split_once(": ") else {
            out.push((*entry).to_owned());
            continue;
        };
        for name in list.split_whitespace() {
            match name {
                "*" => out.extend(names().filter(|known| known.split(": ").next() == Some(file))),
                _ => out.push(format!("{file}: {name}")),
            }
        }
    }
    out
}

fn names() -> impl Iterator<Item = String> {
    NAMES.iter().flat_map(|(file, names)| {
        names
            .split_whitespace()
            .map(move |name| format!("{file}: {name}"))
    })
}

fn translated() -> BTreeSet<String> {
    SECTIONS
        .iter()
        .flat_map(|section| section.cases)
        .flat_map(|case| case.translated())
        .collect()
}

/// Returns the inconsistencies between the two lists.
pub(crate) fn problems() -> Vec<String> {
    let (known, translated): (BTreeSet<_>, _) = (names().collect(), translated());
    let left_out: BTreeSet<_> = left_out().into_iter().collect();
    let named: BTreeSet<_> = translated.union(&left_out).cloned().collect();
    let unknown = named.difference(&known);
    let unknown = unknown.map(|name| format!("google/rdma-unit-test has no {name}"));
    let silent = known.difference(&named);
    let silent = silent.map(|name| format!("{name} has no counterpart, and no reason for that"));
    let both = translated.intersection(&left_out);
    let both = both.map(|name| format!("{name} is left out, and has a counterpart"));
    let mut cases = BTreeSet::new();
    let twice = SECTIONS
        .iter()
        .flat_map(|section| section.cases)
        .filter(|case| !cases.insert(case.function))
        .map(|case| format!("there are two cases with the name {}", case.function))
        .collect::<Vec<_>>();
    unknown.chain(silent).chain(both).chain(twice).collect()
}

/// Returns the section of the report about google/rdma-unit-test.
pub(crate) fn section() -> String {
    let (all, translated) = (names().count(), translated().len());
    let mut out = format!(
        "\n## google rdma-unit-test\n\nOf the {all} cases in its folder `unit`, {translated} are named above. These have no counterpart here:\n\n| case | why |\n| --- | --- |\n"
    );
    for (names, reason) in LEFT_OUT {
        writeln!(out, "| {names} | {reason} |").unwrap();
    }
    out
}
