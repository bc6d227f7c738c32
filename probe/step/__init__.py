"""The shapes of one step, and what is read off them. When a step begins and ends is decided in `loop`.

Who makes and who reads them, on which thread: T trains, R is the recorder's, H the helper's process, C the
callbacks of the kernel, on T. A step that goes the slow way has the shapes from top to bottom; one that C
follows begins as a record in the ring. Types of other packages stand here too: the base name of a module is
unique. `tests/probe/step/test_shapes.py` holds that every type exists, and that none is missing.

| shape | what it is | made by | read by |
|---|---|---|---|
| `open_step.OpenStep` | what is gathered while a step goes on | T loop | T loop, hooks |
| `open_step.RunningBackward` | how it was when a backward began | T loop | the same, to undo it |
| `open_step.FinishedStep` | it is over: gradients, loss, stage | T loop | T measures, judge, fast path |
| `late_values.LateValues` | of it: what is on its way from a device | T loop | T, R measured step |
| `frames.MeasuredStep` | all that is known of it, numbers only | T measures; R: raw | T, R judge, writer |
| `step_queue.QueuedStep` | the same, and how far it is: late, waiting, judged | T pipeline; R | T, R queue |
| `step_queue.QueuedRun` | several that C has followed, as a batch already | R | R, T queue |
| `base.Observation` | of one: what detectors see at once | T, R judge | T, R detectors |
| `base.ObservationBatch` | of several quiet ones | T, R queue | T, R detectors |
| `sample.Sample` | of a complete one: what is sampled, logged | T, R sample judge | T, R their detectors |
| `evidence.StepEvidence` | what a replay needs of it | T judge | T incidents |
| `evidence.LateEvidence` | the stack alone: its update is made | T, R queue | T, R incidents |
| `verdict.Verdict` | what was found; frozen | T, R incidents | T pipeline, hooks |
| `update_meter.UpdateRatios` | what its update did | T update meter | T pipeline |
| `records.Frame` | what others read of it | T writer; R, H of the ring | R, H, dashboard |
| `ring_format.RingRecord` | its bytes in the ring: FRAME, ADDITION, RAW, UPDATE | T writer; C | R, H |
| `ring_format.RawStep` | of a RAW record, as C writes it | R, H | R followed records, H |
| `ring_format.RawUpdate` | of an UPDATE record: what its update did | R, H | R followed records, H |
| `ring_format.Template` | what RAW records of equal steps share | T followed training | R, H |
| `frame_mould.Mould` | what the encoded frames of these share | R writer | R |
| `followed_records.Following` | the same, for who judges them | T followed training | R followed records |
| `armed_loop.FollowedStep` | of one that C followed: its inputs | T armed loop | T followed training |
| `armed_loop.FollowedSteps` | of all since C was armed: count and times | T fast path | T followed training |

Parts of them: `open_step.Clipping` and `late_values.LateClipping` (what clipping did),
`losses.StepLoss` (both forms of the loss), `losses.LossSite` (where a backward was called),
`step_meters.StepTime` (what the step took).
"""
