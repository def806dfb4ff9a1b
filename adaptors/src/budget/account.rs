//! The accounts of a tree. Each adaptor charges its requests to its own account.

use std::cell::Cell;
use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use millpond_core::DeviceMemoryResource;
use millpond_core::process::Origin;

use super::node::{Node, Refusing, add};
use crate::panicked::caught;
use crate::shards::{All, Shards};
use crate::sync::{Mistake, Mutex, has_failed, makes};
use crate::waiting::{Frees, leaves_to_above};

pub(crate) type BudgetNode = Node<Tree>;

/// The state that the budgets of a tree share.
pub(crate) struct Tree {
    /// The accounts. Under this lock, accounts charge budgets.
    accounts: Mutex<Vec<Arc<Account>>>,
    /// Wakes requests that wait for bytes which another budget has borrowed.
    frees: Frees,
    /// The process that made the tree. In a forked child, locks that other threads held are never released.
    process: Origin,
}

impl Default for Tree {
    fn default() -> Self {
        Self { accounts: Mutex::default(), frees: Frees::default(), process: Origin::here() }
    }
}

impl Tree {
    fn is_copy(&self) -> bool {
        self.process.is_elsewhere()
    }
}

/// A thread takes a 64th of the free room in advance.
const PARTS: u64 = 64;

/// The live bytes of one adaptor.
///
/// A thread takes more from the budgets than a request needs, and keeps the rest in its stock. So most
/// requests and frees change only the thread's stock. When a budget refuses a request, the stocks of the
/// whole tree go back first. So a budget refuses only what does not fit.
pub(crate) struct Account {
    pub(crate) node: Arc<BudgetNode>,
    /// Bytes that were charged and are not live.
    stock: Shards<u64>,
    /// The live bytes and the stock. Changes only under the tree's lock.
    charged: AtomicU64,
    /// The whole stack of the adaptor, if it was built from text.
    stack: OnceLock<Weak<dyn DeviceMemoryResource + Send + Sync>>,
}

/// A refused request.
pub(crate) struct Refusal {
    pub(crate) node: Arc<BudgetNode>,
    pub(crate) used: u64,
    /// The bytes that are kept from this request, for requests that wait.
    pub(crate) claimed: u64,
    /// The budgets directly below `node`, and `node` itself, with the bytes that each of them holds.
    pub(crate) holders: Vec<(Arc<BudgetNode>, u64)>,
    /// The budget whose guarantee covers the request.
    guarantor: Option<Arc<BudgetNode>>,
    /// Accounts of other budgets that hold borrowed bytes, in the order in which they are asked.
    borrowers: Vec<Arc<Account>>,
    /// The names of the budgets that were asked to free memory.
    pub(crate) asked: Vec<String>,
}

thread_local! {
    /// Whether the thread runs a holder's function, or trims its stack.
    static IS_CALLING: Cell<bool> = const { Cell::new(false) };
}

impl Account {
    /// Charges a request.
    #[inline]
    pub(crate) fn charge(&self, bytes: u64, is_capturing: impl Fn() -> bool) -> Result<(), Refusal> {
        if self.stock.take(bytes) { Ok(()) } else { self.charge_or_call_back(bytes, &is_capturing) }
    }

    #[cold]
    fn charge_or_call_back(&self, bytes: u64, is_capturing: &dyn Fn() -> bool) -> Result<(), Refusal> {
        let (begin, wait) = (Instant::now(), self.node.settings.wait);
        let refusal = match self.charge_budgets(bytes, None) {
            Err(refusal) => refusal,
            Ok(()) => return Ok(()),
        };
        let Some(guarantor) = &refusal.guarantor else { return Err(refusal) };
        if is_calling_back() || leaves_to_above(wait) {
            return Err(refusal);
        }
        let mut claim = Claim::new(guarantor, bytes);
        let (mut asked, mut is_first) = (Asked::default(), !is_capturing());
        let charge = || {
            let mut charged = self.charge_budgets(bytes, Some(&mut claim));
            while let Err(refusal) = &charged {
                let is_over = !asked.accounts.is_empty() && begin.elapsed() >= wait;
                let Some(guarantor) = refusal.guarantor.as_ref().filter(|_| is_first && !is_over) else {
                    break;
                };
                let is_new = |account: &&Arc<Self>| !holds(&asked.accounts, account);
                let Some(borrower) = refusal.borrowers.iter().find(is_new) else {
                    is_first = refusal.borrowers.is_empty();
                    break;
                };
                asked.ask(borrower, guarantor, bytes);
                charged = self.charge_budgets(bytes, Some(&mut claim));
            }
            charged
        };
        let is_curable = |refusal: &Refusal| refusal.guarantor.is_some();
        let charged = self.node.tree.frees.wait_for(begin, wait, is_curable, charge);
        charged.map_err(|mut refusal| {
            refusal.asked = asked.budgets.iter().map(|budget| budget.settings.name.clone()).collect();
            refusal
        })
    }

    /// Charges a request to the budgets from this account's up to the root, or to none. The claim of a
    /// request that waits ends when the request is charged. Otherwise it moves to the present guarantor.
    fn charge_budgets(&self, bytes: u64, mut claim: Option<&mut Claim>) -> Result<(), Refusal> {
        let accounts = self.node.tree.accounts.lock();
        if let Some(claim) = &mut claim {
            claim.set(None);
        }
        if self.node.refusing(bytes).is_none() {
            let room = self.node.room().saturating_sub(bytes);
            let more = if self.node.tree.frees.are_awaited() { 0 } else { room / PARTS };
            self.add(i128::from(bytes) + i128::from(more));
            if more > 0 {
                let mut mine = self.stock.mine();
                *mine = mine.saturating_add(more);
            }
            return Ok(());
        }
        let emptied = empty_stocks(&accounts);
        let refusing = self.node.refusing(bytes);
        if refusing.is_none() {
            self.add(i128::from(bytes));
        }
        drop(emptied);
        let Some(refusing) = refusing else { return Ok(()) };
        if let Some(claim) = claim {
            claim.set(refusing.guarantor);
        }
        Err(refusal(&accounts, &refusing))
    }

    /// The caller holds the tree's lock.
    fn add(&self, bytes: i128) {
        add(&self.charged, bytes);
        self.node.add(bytes);
    }

    /// Subtracts bytes, but not more than there are: a caller may free a block that was never allocated. The
    /// caller holds the tree's lock.
    fn subtract(&self, bytes: u64) {
        self.add(-i128::from(bytes.min(self.charged.load(Ordering::Relaxed))));
    }

    /// Stops counting a freed block.
    #[inline]
    pub(crate) fn release(&self, bytes: u64) {
        let mut mine = self.stock.mine();
        // Read under the lock of the stock: a request that waits empties the stocks after it has begun to
        // wait. So either it finds these bytes, or this thread sees that it waits.
        if self.node.tree.frees.are_awaited() && !makes(Mistake::KeepsFrees) {
            drop(mine);
            return self.release_to_budgets(bytes);
        }
        *mine = mine.saturating_add(bytes).min(self.node.limit);
    }

    #[cold]
    fn release_to_budgets(&self, bytes: u64) {
        let tree = &self.node.tree;
        if tree.is_copy() {
            return;
        }
        let accounts = tree.accounts.lock();
        self.subtract(bytes);
        drop(accounts);
        tree.frees.note();
    }

    /// Returns how many bytes this account has borrowed between its guarantor's siblings and `refusing`.
    fn borrowed(&self, refusing: &Arc<BudgetNode>, guarantor: &Arc<BudgetNode>) -> u64 {
        let mut bytes = self.charged.load(Ordering::Relaxed);
        for node in self.node.path() {
            if let Some(meets) = guarantor.path().position(|above| Arc::ptr_eq(above, node)) {
                // What lies below the guarantor is covered by it, and what lies above `refusing` is no help.
                let last = guarantor.path().position(|above| Arc::ptr_eq(above, refusing)).unwrap_or(0);
                return if meets > 0 && meets <= last { bytes } else { 0 };
            }
            bytes = bytes.min(node.borrowed());
        }
        0
    }

    /// Remembers the whole stack of the adaptor.
    pub(crate) fn set_stack(&self, stack: Weak<dyn DeviceMemoryResource + Send + Sync>) {
        let _ = self.stack.set(stack);
    }
}

/// Keeps bytes for a waiting request, while this value lives.
struct Claim {
    guarantor: Option<Arc<BudgetNode>>,
    bytes: u64,
}

impl Claim {
    fn new(guarantor: &Arc<BudgetNode>, bytes: u64) -> Self {
        let _accounts = guarantor.tree.accounts.lock();
        let mut claim = Self { guarantor: None, bytes };
        claim.set(Some(guarantor));
        claim
    }

    /// Moves the claim to another guarantor, or ends it. The caller holds the tree's lock.
    fn set(&mut self, guarantor: Option<&Arc<BudgetNode>>) {
        let bytes = i128::from(self.bytes);
        // The account of the request keeps its budgets, so nothing is dropped under the lock.
        if let Some(earlier) = mem::replace(&mut self.guarantor, guarantor.cloned()) {
            earlier.claim(-bytes);
        }
        if let Some(guarantor) = guarantor {
            guarantor.claim(bytes);
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if has_failed() {
            return;
        }
        if let Some(guarantor) = self.guarantor.clone() {
            let _accounts = guarantor.tree.accounts.lock();
            self.set(None);
        }
    }
}

/// The holders that a request has asked to free memory.
#[derive(Default)]
struct Asked {
    accounts: Vec<Arc<Account>>,
    budgets: Vec<Arc<BudgetNode>>,
}

impl Asked {
    /// Asks a holder: calls the functions of its budget and of the budgets above, up to those that it shares
    /// with the guarantor, and trims its stack. Calls each budget's function once. Holds no lock, and catches
    /// the panics of the holder.
    fn ask(&mut self, account: &Arc<Account>, guarantor: &Arc<BudgetNode>, bytes: u64) {
        let _calling = Calling::begin();
        for node in account.node.path().take_while(|node| !guarantor.path().any(|it| Arc::ptr_eq(it, node))) {
            if holds(&self.budgets, node) {
                continue;
            }
            let call_back = node.on_call_back();
            if call_back.is_none() && !Arc::ptr_eq(node, &account.node) {
                continue;
            }
            self.budgets.push(Arc::clone(node));
            let called = call_back.map_or(Some(()), |function| {
                let called = caught(|| function(bytes));
                // The budget may have another function by now, so that this handle is the last.
                caught(|| drop(function)).and(called)
            });
            if called.is_none() {
                let name = &node.settings.name;
                tracing::error!(target: "millpond::budget", "the function of the budget `{name}` panicked");
            }
        }
        self.accounts.push(Arc::clone(account));
        let name = &account.node.settings.name;
        // The stack may end here, if its program drops it meanwhile.
        let trim = || account.stack.get().and_then(Weak::upgrade).map_or(Ok(0), |stack| stack.trim(0));
        match caught(trim) {
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                tracing::warn!(target: "millpond::budget", %error, "the budget `{name}` kept memory");
            }
            None => tracing::error!(target: "millpond::budget", "a layer of the budget `{name}` panicked"),
        }
    }
}

fn holds<T>(all: &[Arc<T>], one: &Arc<T>) -> bool {
    all.iter().any(|it| Arc::ptr_eq(it, one))
}

/// Returns whether the thread runs a holder's function, or trims its stack.
pub(crate) fn is_calling_back() -> bool {
    IS_CALLING.try_with(Cell::get).unwrap_or(true)
}

/// Marks, while it lives, that the thread runs a holder's function, or trims its stack.
struct Calling;

impl Calling {
    fn begin() -> Self {
        let _ = IS_CALLING.try_with(|is_calling| is_calling.set(true));
        Self
    }
}

impl Drop for Calling {
    fn drop(&mut self) {
        let _ = IS_CALLING.try_with(|is_calling| is_calling.set(false));
    }
}

/// Gives all stocks back to the budgets. Until the result is dropped, no thread can change a stock.
fn empty_stocks(accounts: &[Arc<Account>]) -> Vec<All<'_, u64>> {
    // A thread that begins while the later accounts are locked may fill a stock of an earlier one, and then
    // take from a later one.
    let lock_all = || accounts.iter().map(|account| account.stock.all()).collect::<Vec<_>>();
    let mut stocks = lock_all();
    while !stocks.iter().all(All::is_whole) {
        drop(stocks);
        stocks = lock_all();
    }
    if makes(Mistake::LooksAtOneStockAtATime) {
        stocks = Vec::new();
        for account in accounts {
            let parts: u64 = account.stock.all().each.iter_mut().map(|part| mem::take(&mut **part)).sum();
            account.subtract(parts);
        }
    }
    for (account, stock) in accounts.iter().zip(&mut stocks) {
        let parts = stock.each.iter_mut().map(|part| mem::take(&mut **part));
        account.subtract(parts.fold(0, u64::saturating_add));
    }
    stocks
}

fn refusal(accounts: &[Arc<Account>], refusing: &Refusing<'_, Tree>) -> Refusal {
    let Refusing { node, guarantor, claimed } = *refusing;
    let mut holders: Vec<(Arc<BudgetNode>, u64)> = Vec::new();
    for account in accounts {
        let path: Vec<_> = account.node.path().collect();
        let Some(at) = path.iter().position(|on_path| Arc::ptr_eq(on_path, node)) else { continue };
        let holder = path[at.saturating_sub(1)];
        let charged = account.charged.load(Ordering::Relaxed);
        match holders.iter_mut().find(|(known, _)| Arc::ptr_eq(known, holder)) {
            Some((_, bytes)) => *bytes += charged,
            None => holders.push((Arc::clone(holder), charged)),
        }
    }
    holders.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    Refusal {
        node: Arc::clone(node),
        used: node.charged(),
        claimed,
        holders,
        guarantor: guarantor.cloned(),
        borrowers: guarantor.map_or_else(Vec::new, |guarantor| borrowers(accounts, node, guarantor)),
        asked: Vec::new(),
    }
}

/// Returns the accounts that hold borrowed bytes: the lowest priority first, then the largest debt.
fn borrowers(
    accounts: &[Arc<Account>],
    refusing: &Arc<BudgetNode>,
    guarantor: &Arc<BudgetNode>,
) -> Vec<Arc<Account>> {
    let debt = |account: &Arc<Account>| (account.borrowed(refusing, guarantor), Arc::clone(account));
    let mut all: Vec<_> = accounts.iter().map(debt).filter(|(bytes, _)| *bytes > 0).collect();
    all.sort_by_key(|(bytes, account)| (account.node.settings.priority, std::cmp::Reverse(*bytes)));
    all.into_iter().map(|(_, account)| account).collect()
}

impl BudgetNode {
    /// Returns the live bytes, and the bytes that still fit.
    pub(crate) fn used_and_room(self: &Arc<Self>) -> (u64, u64) {
        let accounts = self.tree.accounts.lock();
        let _stocks = empty_stocks(&accounts);
        (self.charged(), self.room())
    }

    #[cfg(test)]
    pub(crate) fn is_awaited(&self) -> bool {
        self.tree.frees.are_awaited()
    }
}

/// The account of an adaptor. All its bytes go back when the adaptor is dropped.
pub(crate) struct Member(Arc<Account>);

impl Member {
    pub(crate) fn new(node: Arc<BudgetNode>) -> Self {
        let tree = Arc::clone(&node.tree);
        let (charged, stack) = (AtomicU64::new(0), OnceLock::new());
        let account = Arc::new(Account { node, stock: Shards::new(), charged, stack });
        tree.accounts.lock().push(Arc::clone(&account));
        Self(account)
    }

    pub(crate) fn account(&self) -> &Arc<Account> {
        &self.0
    }
}

impl std::ops::Deref for Member {
    type Target = Account;

    fn deref(&self) -> &Account {
        &self.0
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if has_failed() {
            return;
        }
        let tree = &self.0.node.tree;
        if tree.is_copy() {
            return;
        }
        let mut accounts = tree.accounts.lock();
        // This value keeps the account, so nothing is dropped under the lock.
        accounts.retain(|account| !Arc::ptr_eq(account, &self.0));
        self.subtract(u64::MAX);
        drop(accounts);
        tree.frees.note();
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account").field("budget", &self.node).finish_non_exhaustive()
    }
}
